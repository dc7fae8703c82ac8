"""LLM inference, taught and built: load a model, decode with a technique, measure what it gains.

    from lessons_lib import load, generate
    model = load("smollm2-135m")
    print(generate(model.target(), "Once upon a time").text)

The packages, each importing only from those below it (and all from the small modules compiler, progress and
paths); `help("lessons_lib.serving")` and so on lead further:

course         running and storing lessons, their checks, exercises and pages
widgets        figures with sliders, and their still form
figures        functions that draw from rows; drawings
training       distilling a small draft, training heads
serving        scheduler, block pool, simulator, engine, client
decoding       the one loop, its targets, proposers and acceptance rules
models         where weights come from, and the readable decoder
quantization   number formats of few bits, GPTQ and its kin, products with rounded weights
attention      naive, tiled and split attention with their traffic counted; torch's backends
caches         keys and values: contiguous, static, paged
measure        clocks, this machine, cost models, scorecard, claims
native         two kernels in C++, compiled where they are first needed
data, weights  prompts, texts; a trained draft and trained heads

What the package itself offers:

load           a model by name or folder -> LanguageModel; `.target()` is what decodes
generate       continue a prompt with a target, a proposer and an acceptance rule
TextStream     prints text as it is generated: `generate(..., on_tokens=TextStream(model.tokenizer))`
Greedy         acceptance: the target's most probable token
Sampling       acceptance: samples from the target's distribution, exactly
Typical        acceptance: takes every guess that the target would not be surprised by; not lossless
PromptLookup   proposer: copies what followed an earlier occurrence of the text's last tokens
Jacobi         proposer: refines its own guess with the target's leftover predictions
Lookahead      proposer: collects n-grams in a window beside the text and verifies those that fit
DraftModel     proposer: a small model of the same tokenizer drafts
Medusa         proposer: heads on the target's own final state guess, a tree of them is verified
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors: where the public names are
    from lessons_lib.decoding.generate import generate
    from lessons_lib.decoding.proposers.draft_model import DraftModel
    from lessons_lib.decoding.proposers.jacobi import Jacobi
    from lessons_lib.decoding.proposers.lookahead import Lookahead
    from lessons_lib.decoding.proposers.medusa import Medusa
    from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
    from lessons_lib.decoding.sampling import Greedy, Sampling, Typical
    from lessons_lib.decoding.streaming import TextStream
    from lessons_lib.models import load

__version__ = "0.1.0"

_HOMES = {
    "load": "lessons_lib.models",
    "generate": "lessons_lib.decoding.generate",
    "TextStream": "lessons_lib.decoding.streaming",
    "Greedy": "lessons_lib.decoding.sampling",
    "Sampling": "lessons_lib.decoding.sampling",
    "Typical": "lessons_lib.decoding.sampling",
    "PromptLookup": "lessons_lib.decoding.proposers.prompt_lookup",
    "Jacobi": "lessons_lib.decoding.proposers.jacobi",
    "Lookahead": "lessons_lib.decoding.proposers.lookahead",
    "DraftModel": "lessons_lib.decoding.proposers.draft_model",
    "Medusa": "lessons_lib.decoding.proposers.medusa",
}
__all__ = ["load", "generate", "TextStream", "Greedy", "Sampling", "Typical", "PromptLookup", "Jacobi", "Lookahead"]
__all__ += ["DraftModel", "Medusa"]


def __getattr__(name: str):
    """Public names are imported when they are first used, so that `clean` and `--help` need no package."""
    if name not in _HOMES:
        raise AttributeError(f"lessons_lib has no {name!r}; it offers {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
