"""Interactive figures: thin shells over tested functions, with a still figure where nobody can move a slider.

One module a lesson, each with its `show_...`: a `draw_...` makes the figure at the sliders' settings, a `describe_...`
says it in words, and `controls.show` puts them together.

latency         what prompt and output do to a request's latency (lesson 01)
kv_cache        bytes of a cache, and the requests that fit (02)
break_even      when compiling has paid for itself (03)
attention       tiles, what they move and keep (04)
batching        a scheduler step by step (05)
draft_length    what a draft length does, and who wrote each token (06)
prompt_lookup   n-grams and guesses, counted anew (07)
lookahead       the mask of a step, and what it must commit (08)
medusa          the best tree within limits (09)
quantization    what a format does to weights, model and speed (10)
ladder          a ladder of one's own choice (11)
sparsity        what skipping can gain at most (12)
controls        sliders above a figure, or the figure alone
"""

from lessons_lib.widgets.attention import show_attention
from lessons_lib.widgets.batching import show_batching
from lessons_lib.widgets.break_even import show_break_even
from lessons_lib.widgets.draft_length import Drafted, show_draft_length
from lessons_lib.widgets.kv_cache import show_kv_cache
from lessons_lib.widgets.ladder import Parts, show_ladder
from lessons_lib.widgets.latency import show_latency
from lessons_lib.widgets.lookahead import show_lookahead
from lessons_lib.widgets.medusa import show_medusa
from lessons_lib.widgets.prompt_lookup import show_prompt_lookup
from lessons_lib.widgets.quantization import Machine, Subject, show_quantization
from lessons_lib.widgets.sparsity import show_limits

__all__ = [
    "Drafted",
    "Machine",
    "Parts",
    "Subject",
    "show_attention",
    "show_batching",
    "show_break_even",
    "show_draft_length",
    "show_kv_cache",
    "show_ladder",
    "show_latency",
    "show_limits",
    "show_lookahead",
    "show_medusa",
    "show_prompt_lookup",
    "show_quantization",
]
