"""The decoding loop (lessons 01, 03, 06 to 09, 13): proposers, draft trees, acceptance rules and targets.

To read one technique whole, here prompt lookup, read in this order:
generate                the loop: propose, run, verify, commit
sequence                the state of one text
draft_tree              draft tokens, and the model input that verifies them
proposers/              the base class is in proposers/__init__, prompt lookup in proposers/prompt_lookup
sampling                verification: the acceptance rules
targets/decoder         the forward pass, with models/decoder and caches/cache

Around it:
text, checks            prompts to ids, ids to text, stop texts; what arguments may be
prediction              counts and speeds of a run that was not made
probing, timing         logits along a text; times of steps and requests
peers, llamacpp         the same by transformers and llama.cpp
"""

from lessons_lib.decoding import llamacpp
from lessons_lib.decoding.draft_tree import DraftTree, ModelInput, make_input, plain_input
from lessons_lib.decoding.generate import after_prefill, new_sequence, step, tokens_per_pass
from lessons_lib.decoding.peers import TransformersGenerate, assist, by_transformers, static_and_compiled
from lessons_lib.decoding.prediction import (
    TOLERATED,
    Configuration,
    Recording,
    best,
    check_order,
    counting,
    counts,
    replay,
    replay_draft,
    way_to,
)
from lessons_lib.decoding.probing import agreed, first_divergence, logit_gap, logits_along, repeatable_step, width_times
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, Constant
from lessons_lib.decoding.proposers.jacobi import iterates
from lessons_lib.decoding.proposers.medusa import MedusaHeads, load_heads, own_parameters, shared_parameters
from lessons_lib.decoding.proposers.tree_shape import TreeShape, best_size, best_tree, regular, speed_by_size
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget, as_target
from lessons_lib.decoding.targets.table import TableTarget
from lessons_lib.decoding.text import encode
from lessons_lib.decoding.timing import (
    batched_step,
    batched_transformers_step,
    clocked_transformers,
    launch_times,
    overhead_proxy,
    time_request,
    time_requests,
    time_transformers,
)

__all__ = [
    "Adaptive",
    "CompiledTarget",
    "Confidence",
    "Configuration",
    "Constant",
    "DecoderTarget",
    "DraftTree",
    "MedusaHeads",
    "ModelInput",
    "Proposer",
    "Recording",
    "TOLERATED",
    "TableTarget",
    "TransformersGenerate",
    "TransformersTarget",
    "TreeShape",
    "after_prefill",
    "agreed",
    "as_target",
    "assist",
    "batched_step",
    "batched_transformers_step",
    "best",
    "best_size",
    "best_tree",
    "by_transformers",
    "check_order",
    "clocked_transformers",
    "counting",
    "counts",
    "encode",
    "first_divergence",
    "iterates",
    "launch_times",
    "llamacpp",
    "load_heads",
    "logit_gap",
    "logits_along",
    "make_input",
    "new_sequence",
    "overhead_proxy",
    "own_parameters",
    "plain_input",
    "regular",
    "repeatable_step",
    "replay",
    "replay_draft",
    "shared_parameters",
    "speed_by_size",
    "static_and_compiled",
    "step",
    "time_request",
    "time_requests",
    "time_transformers",
    "tokens_per_pass",
    "way_to",
    "width_times",
]
