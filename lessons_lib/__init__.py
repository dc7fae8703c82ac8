"""LLM inference, taught and built: load a model, decode with a technique, measure what it gains.

    from lessons_lib import load, generate
    model = load("smollm2-135m")
    print(generate(model, "Once upon a time").text)

The packages, each importing only from those below it (`help("lessons_lib.serving")` shows more about one of them):

cli            the command `lessons`
course         for lessons: exercises, figures, widgets; running and sweeping lessons
training       training of draft models, Medusa heads and early exits (LayerSkip)
serving        scheduler, block pool, engine, simulator, workload, client, server
decoding       the decoding loop, its sequences, targets, proposers and acceptance rules
models         loading of weights, and a readable decoder
quantization   low-bit number formats, GPTQ and similar methods, linear layers with quantized weights
attention      naive, tiled and split attention with counted memory traffic; torch's backends
caches         KV caches: contiguous, static, paged, streaming
measure        clocks, properties of this machine, cost model, scorecard, claims
data, weights  prompts and texts; a trained draft model, trained heads, a model trained with LayerSkip

Exported by the package itself:

load           opens a model by name or folder -> LanguageModel; `.target()` makes a target from it
generate       continue a prompt with a target, a proposer and an acceptance rule
compare        runs techniques side by side on the same prompts: speed, forward passes, and whether the tokens agree
TextStream     prints text as it is generated: `generate(..., on_tokens=TextStream(model.tokenizer))`
Greedy         acceptance rule: the target's most likely token; lossless
Sampling       acceptance rule: samples from the target's distribution; lossless
Typical        acceptance rule: accepts draft tokens above an entropy-dependent probability; lossy
PromptLookup   proposer: copies the tokens that followed an earlier occurrence of the last n-gram
Jacobi         proposer: refines its own draft tokens with the target's predictions from the last step
Lookahead      proposer: collects n-grams with a Jacobi window and drafts those that start with the root
DraftModel     proposer: a small model with the same tokenizer drafts
Medusa         proposer: heads on the target's last hidden state draft a tree
EarlyExit      proposer: the target's own first layers draft, and the others verify (LayerSkip)
"""

import os

# Lets waiting OpenMP threads yield to other programs sooner. Read when torch is imported; your own setting wins.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from lessons_lib.comparison import compare
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.early_exit import EarlyExit
from lessons_lib.decoding.proposers.jacobi import Jacobi
from lessons_lib.decoding.proposers.lookahead import Lookahead
from lessons_lib.decoding.proposers.medusa import Medusa
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sampling import Greedy, Sampling, Typical
from lessons_lib.decoding.text import TextStream
from lessons_lib.models import load

__version__ = "0.1.0"
__all__ = [
    "load", "generate", "compare", "TextStream", "Greedy", "Sampling", "Typical", "PromptLookup", "Jacobi", "Lookahead",
    "DraftModel", "Medusa", "EarlyExit",
]  # fmt: skip
