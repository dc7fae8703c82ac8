"""Tools for developers of the course; run from the clone, mostly by make.

store     execute lessons and store their outputs in notebooks/
lint      tools that read code, and the house rules for stored lessons
readme    README's generated parts; calls the three below
report    RESULTS.md
techniques   a table of all techniques: measured, predicted and published
predictions  what was predicted and measured, of lessons and benches
mutation  the share of small faults in the library that the tests detect
drawings  imgs/, drawn by code
"""
