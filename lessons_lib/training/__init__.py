"""Training: a small draft distilled from a target (lesson 06), Medusa heads (lesson 09).

`python -m lessons_lib.training` runs the recipes.
"""
