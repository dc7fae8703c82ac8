"""What those need who work on the course, and nobody who reads it; run from the clone, mostly by make.

store     execute lessons and store their outputs in notebooks/
lint      tools that read code, and the house rules for stored lessons
readme    README's generated tables
mutation  how many small faults in the library do the tests notice?
drawings  imgs/, drawn by code
"""
