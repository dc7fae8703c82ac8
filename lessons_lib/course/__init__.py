"""The course's own machinery: running and storing the lessons, their pages, their checks, README.

commands        what each command needs and does
lessons         the lessons as files: finding, choosing, parameters
runner          `run`: lessons into build/, with their pages (render)
store           `lessons`: executed again, outputs kept in notebooks/
colab           the cell and the link that open a lesson elsewhere
grid, sweep     a grid of parameters over lessons, executed by workers; what it leaves (results)
checks, tools   `lint`: house rules for lessons, and the tools that read code
mutation        `mutation`: the library broken in small ways
readme          README's tables
exercises       exercises that check themselves
site            the rendered course
"""
