"""Interactive figures: thin shells over tested functions, with a still figure where nobody can move a slider.

One module a lesson, each with its `show_...`: a `draw_...` makes the figure at the sliders' settings, a `describe_...`
says it in words, and `controls.show` puts them together.
"""
