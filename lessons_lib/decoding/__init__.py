"""The decoding loop (lessons 01, 03, 06 to 09): proposers, draft trees, acceptance rules and targets."""

from lessons_lib.decoding.draft_tree import Block, DraftTree, SideTokens, make_block, plain_block, tree_mask
from lessons_lib.decoding.generate import (
    Output,
    after_prefill,
    compression,
    new_sequence,
    step,
    tokens_per_forward,
)
from lessons_lib.decoding.peers import assist, by_transformers, count_forwards, static_and_compiled
from lessons_lib.decoding.prediction import (
    TOLERATED,
    Recording,
    Rung,
    best,
    counting,
    counts,
    replay,
    replay_draft,
    standing,
    way_to,
)
from lessons_lib.decoding.probing import agreed, logits_along, parting, repeatable_step, shortfall, width_times
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, Constant, Heuristic
from lessons_lib.decoding.proposers.draft_model import check_same_tokenizer
from lessons_lib.decoding.proposers.jacobi import iterates
from lessons_lib.decoding.proposers.medusa import (
    TreeShape,
    best_size,
    best_tree,
    buffers,
    expected_tokens,
    published_tree,
    regular,
    speed_by_size,
)
from lessons_lib.decoding.proposers.prompt_lookup import SILENT_BELOW
from lessons_lib.decoding.sampling import Greedy, Sampling, Typical
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget, as_target
from lessons_lib.decoding.targets.one_by_one import one_by_one
from lessons_lib.decoding.targets.table import TableTarget
from lessons_lib.decoding.text import TextStream, encode
from lessons_lib.decoding.timing import (
    batched_step,
    batched_transformers_step,
    clocked_transformers,
    launch_times,
    products_in_cache,
    time_request,
    time_requests,
    time_transformers,
    twin,
)
from lessons_lib.models.medusa import MedusaHeads, load_heads, own_parameters, shared_parameters

__all__ = [
    "Adaptive",
    "Block",
    "CompiledTarget",
    "Confidence",
    "Constant",
    "DecoderTarget",
    "DraftTree",
    "Greedy",
    "Heuristic",
    "MedusaHeads",
    "Output",
    "Proposer",
    "Recording",
    "Rung",
    "SILENT_BELOW",
    "Sampling",
    "SideTokens",
    "TOLERATED",
    "TableTarget",
    "TextStream",
    "TransformersTarget",
    "TreeShape",
    "Typical",
    "after_prefill",
    "agreed",
    "as_target",
    "assist",
    "batched_step",
    "batched_transformers_step",
    "best",
    "best_size",
    "best_tree",
    "buffers",
    "by_transformers",
    "check_same_tokenizer",
    "clocked_transformers",
    "compression",
    "count_forwards",
    "counting",
    "counts",
    "encode",
    "expected_tokens",
    "iterates",
    "launch_times",
    "load_heads",
    "logits_along",
    "make_block",
    "new_sequence",
    "one_by_one",
    "own_parameters",
    "parting",
    "plain_block",
    "products_in_cache",
    "published_tree",
    "regular",
    "repeatable_step",
    "replay",
    "replay_draft",
    "shared_parameters",
    "shortfall",
    "speed_by_size",
    "standing",
    "static_and_compiled",
    "step",
    "time_request",
    "time_requests",
    "time_transformers",
    "tokens_per_forward",
    "tree_mask",
    "twin",
    "way_to",
    "width_times",
]
