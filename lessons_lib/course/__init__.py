"""What the lessons call, and what runs them.

exercises   exercises that check themselves
figures     shared figures, and the style of all; a module for the pictures of each lesson
display     shows a figure with its alt text
widgets     figures with sliders, and their still form
lessons     the lessons as files: finding, choosing, parameters
runner      `lessons run`: lessons into build/, with their pages (render)
sweep       `lessons sweep`: a grid of parameters over lessons
"""
