"""The functions that notebooks call, and the programs that execute notebooks.

figures         the look of every figure, and the plots that several lessons share
display         shows a figure with its alt text, and checks that all of its text is legible
widgets         a figure with sliders, and its stored form
stepper         a display of several steps, which needs no kernel
quantities      one quantity has one value: named results of a lesson
exercises       exercises that check themselves, one file per topic
kv_cache, attention, assisted, prompt_lookup, lookahead, medusa,
quantization, ladder, sparsity, streaming
                the plots and the widget of one lesson each

lessons         the lessons as files: finding, choosing, parameters
runner, render  `lessons run`: executes lessons into build/, with their pages
sweep           `lessons sweep`: a grid of parameters over lessons
"""
