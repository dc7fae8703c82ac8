"""Training: distilling a small draft from a target (lesson 06). `python -m lessons_lib.training` runs the recipe."""
