"""LLM inference, taught and built: load a model, decode with a technique, measure what it gains.

    from lessons_lib import load, generate
    model = load("smollm2-135m")
    print(generate(model.target(), "Once upon a time").text)

The packages, each importing only from those below it; `help("lessons_lib.serving")` and so on lead further:

course         what lessons call: exercises, figures, widgets; running and sweeping lessons
training       what trains drafts and heads
serving        sequences, scheduler, block pool, engine, simulator, workload, client
decoding       the one loop, its targets, proposers and acceptance rules
models         where weights come from, and the readable decoder
quantization   number formats of few bits, GPTQ and its kin, linear layers with quantized weights
attention      naive, tiled and split attention with their traffic counted; torch's backends
caches         keys and values: contiguous, static, paged
measure        clocks, this machine, cost models, scorecard, claims
data, weights  prompts, texts; a trained draft and trained heads

What the package itself offers:

load           a model by name or folder -> LanguageModel; `.target()` is what decodes
generate       continue a prompt with a target, a proposer and an acceptance rule
TextStream     prints text as it is generated: `generate(..., on_tokens=TextStream(model.tokenizer))`
Greedy         acceptance rule: the target's most likely token; lossless
Sampling       acceptance rule: samples from the target's distribution; lossless
Typical        acceptance rule: takes every draft token that would not surprise the target; lossy
PromptLookup   proposer: copies what followed an earlier occurrence of the text's last tokens
Jacobi         proposer: refines its own draft tokens with the target's leftover predictions
Lookahead      proposer: collects n-grams in a window beside the text and verifies those that fit
DraftModel     proposer: a small model with the same tokenizer drafts
Medusa         proposer: heads on the target's own last hidden state draft a tree
"""

import os

# OpenMP reads it when torch is imported: threads that wait give way to other programs sooner, unless you set it
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.jacobi import Jacobi
from lessons_lib.decoding.proposers.lookahead import Lookahead
from lessons_lib.decoding.proposers.medusa import Medusa
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sampling import Greedy, Sampling, Typical
from lessons_lib.decoding.text import TextStream
from lessons_lib.models import load

__version__ = "0.1.0"
__all__ = [
    "load", "generate", "TextStream", "Greedy", "Sampling", "Typical", "PromptLookup", "Jacobi", "Lookahead",
    "DraftModel", "Medusa",
]  # fmt: skip
