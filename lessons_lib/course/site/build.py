"""`site`: sources into build/site-source, pages by Sphinx into build/site, then the checks of what was built."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.console import strip_escape_sequences
from sphinx.util.docutils import docutils_namespace, patch_docutils

from lessons_lib.course.lessons import Lesson, find
from lessons_lib.course.runner import shown
from lessons_lib.course.site import pages, reference, sources
from lessons_lib.paths import ROOT
from lessons_lib.progress import line

BUILD = ROOT / "build"
STYLE = Path(__file__).with_name("style.css")
SETTINGS = {
    "project": "Faster language models",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "lessons_lib.course.site.extension"],
    "html_theme": "furo",
    "html_title": "Faster language models",
    "html_static_path": [str(STYLE)],
    "html_css_files": [STYLE.name],
    "html_favicon": str(STYLE.with_name("icon.svg")),
    "html_math_renderer": "mathml",  # ours: no script, and nothing from a content network
    "html_show_sourcelink": False,
    "html_copy_source": False,
    "html_show_copyright": False,
    "exclude_patterns": ["lessons/notebooks"],
    "nb_execution_mode": "off",  # outputs are those that the notebooks keep
    "nb_render_markdown_format": "myst",
    "nb_merge_streams": True,
    "myst_enable_extensions": ["amsmath", "attrs_inline", "colon_fence", "dollarmath"],
    "autodoc_inherit_docstrings": False,  # those of torch are in another style
    "autodoc_preserve_defaults": True,
    "autodoc_typehints_format": "short",
    "python_maximum_signature_line_length": 80,
    "python_use_unqualified_type_names": True,
    "add_module_names": False,
    "toc_object_entries": False,  # modules in the menu, not each function: every page would copy all of them
}


def build(root: Path = BUILD, lessons: list[Lesson] | None = None, rooms: list[str] | None = None) -> int:
    """Build the site of these lessons, and of these rooms of the library; None: of all.

    Returns the exit status, after every problem has been said. ValueError as `glossary.symbols`.
    """
    lessons = find() if lessons is None else lessons
    rooms = reference.rooms() if rooms is None else rooms
    folder = root / "site"
    with line("sources"):
        problems = sources.write(root / "site-source", lessons, rooms, root)
    with line("pages"):
        problems += render(root / "site-source", folder)
    with line("links, pictures, requests"):
        problems += pages.problems(folder)
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    print(f"\nRead {shown(folder / 'index.html')}.")
    return int(bool(problems))


def render(source: Path, folder: Path) -> list[str]:
    """Let Sphinx write the pages of a folder of sources; gives its warnings."""
    shutil.rmtree(folder, ignore_errors=True)
    said, work = io.StringIO(), source.with_name("site-doctrees")
    shutil.rmtree(work, ignore_errors=True)
    with docutils_namespace(), patch_docutils():
        Sphinx(source, None, folder, work, "html", SETTINGS, status=None, warning=said).build()
    return [text for text in strip_escape_sequences(said.getvalue()).splitlines() if text.strip()]


if __name__ == "__main__":
    sys.exit(build())
