"""The rendered course: all lessons, the library's docstrings, glossary, bibliography and scorecard as one static site.

build             sources, then Sphinx, then the checks; what every page is made with
sources           the folder that Sphinx reads: start page, lists, scorecard
stored_lessons    a stored lesson as MyST-NB reads it, with its figures as files and its look-up list
reference         a page per room, its modules as sections
docstrings        our plain docstrings as reStructuredText
extension         what Sphinx asks us while it builds: formulas as MathML, docstrings
glossary          terms, from glossary.toml; symbols, from CONTRIBUTING
bibliography      papers and documents, from bibliography.toml, and who names them
pages             the built pages checked: links, anchors, pictures, and that nothing is loaded from elsewhere
"""
