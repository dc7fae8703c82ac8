"""Interactive figures: thin shells over tested functions, with a still figure where nobody can move a slider."""

from lessons_lib.widgets.break_even import show_break_even
from lessons_lib.widgets.controls import Slider, show
from lessons_lib.widgets.kv_cache import show_kv_cache
from lessons_lib.widgets.latency import show_latency
from lessons_lib.widgets.prompt_lookup import show_prompt_lookup

__all__ = ["Slider", "show", "show_break_even", "show_kv_cache", "show_latency", "show_prompt_lookup"]
