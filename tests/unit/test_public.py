"""What the package offers: documented, and imported without what only notebooks need."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import lessons_lib
from lessons_lib.models import tiny
from lessons_lib.paths import ROOT

FOR_NOTEBOOKS = {"IPython", "ipykernel", "ipywidgets", "matplotlib", "nbclient", "nbformat", "papermill"}


def imported_by(code: str) -> set[str]:
    """The packages that a fresh process has imported after `code`, beyond those of torch and transformers."""
    lines = [
        "import json, sys, torch, transformers",
        "from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel",
        "before = set(sys.modules)",
        code,
        "print(json.dumps(sorted(set(sys.modules) - before)))",
    ]
    out = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(out.stdout)}


def test_importing_the_package_imports_nothing_that_only_notebooks_need():
    found = imported_by("import lessons_lib")
    assert "lessons_lib" in found and not found & FOR_NOTEBOOKS


def test_loading_generating_and_comparing_need_no_package_of_an_extra(tmp_path):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    required = {re.match(r"[\w.-]+", text)[0].lower() for texts in extras.values() for text in texts}
    # torch, transformers and matplotlib require these themselves
    required -= {"jinja2", "lessons_lib", "packaging", "pillow", "setuptools"}
    absent = [name for name, ways in packages_distributions().items() if required & {way.lower() for way in ways}]
    tiny().save_pretrained(tmp_path)
    words = WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("w1")
    code = [
        f"import sys; sys.modules.update(dict.fromkeys({absent}))",
        "from lessons_lib import PromptLookup, generate, load",
        f"print(len(generate(load({str(tmp_path)!r}), [1, 2, 3], PromptLookup(), max_new_tokens=8).ids))",
        "from lessons_lib.cli import main",
        f"main(['compare', '--model', {str(tmp_path)!r}, '--prompts', {str(prompts)!r}, '--max-new-tokens', '4',",
        f"      '--device', 'cpu', '--output', {str(tmp_path)!r}])",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=ROOT, capture_output=True, text=True)
    assert {"IPython", "ipywidgets", "openai"} <= {*absent}
    assert done.stdout.startswith("8\n") and "transformers, prompt lookup" in done.stdout, done.stderr
    assert (tmp_path / "comparison.png").exists()


def test_the_packages_own_text_lists_all_it_offers():
    table = lessons_lib.__doc__.strip().split("\n\n")[-1]
    assert [line.split()[0] for line in table.splitlines()] == lessons_lib.__all__


def test_the_packages_own_text_names_every_room():
    rooms = {path.parent.name for path in (ROOT / "lessons_lib").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"\w+", lessons_lib.__doc__.split("The packages")[1]))
