"""The decoding loop (lessons 01, 03, 06 to 09): proposers, draft trees, acceptance rules and targets."""

from lessons_lib.decoding.draft_tree import DraftTree, ModelInput, SideTokens, make_input, plain_input, tree_mask
from lessons_lib.decoding.generate import (
    Output,
    after_prefill,
    compression,
    new_sequence,
    step,
    tokens_per_pass,
)
from lessons_lib.decoding.peers import (
    TransformersGenerate,
    assist,
    by_transformers,
    count_passes,
    static_and_compiled,
)
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
    overhead_proxy,
    products_in_cache,
    time_request,
    time_requests,
    time_transformers,
)
from lessons_lib.models.medusa import MedusaHeads, load_heads, own_parameters, shared_parameters

__all__ = [
    "Adaptive",
    "ModelInput",
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
    "Configuration",
    "SILENT_BELOW",
    "Sampling",
    "SideTokens",
    "TOLERATED",
    "TableTarget",
    "TextStream",
    "TransformersGenerate",
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
    "count_passes",
    "counting",
    "counts",
    "encode",
    "expected_tokens",
    "iterates",
    "launch_times",
    "load_heads",
    "logits_along",
    "make_input",
    "new_sequence",
    "one_by_one",
    "own_parameters",
    "first_divergence",
    "plain_input",
    "products_in_cache",
    "published_tree",
    "regular",
    "repeatable_step",
    "replay",
    "replay_draft",
    "shared_parameters",
    "logit_gap",
    "speed_by_size",
    "check_order",
    "static_and_compiled",
    "step",
    "time_request",
    "time_requests",
    "time_transformers",
    "tokens_per_pass",
    "tree_mask",
    "overhead_proxy",
    "way_to",
    "width_times",
]
