"""Training: a small draft distilled from a target (lesson 06), Medusa heads (lesson 09).

`python -m lessons_lib.training` runs the recipes.

prompts    what the target is asked, and what drafts and heads are measured on
collect    the target answers the prompts, many at once, and its states are kept
loop       what all training runs share: steps, learning rate, batches, checkpoints
distill    a draft learns the target's distribution from the texts
medusa     Medusa heads, trained alone or together with the model
evaluate   tokens per forward pass of drafts and heads, by replay
"""

from lessons_lib.training.collect import Text, Writer, plan
from lessons_lib.training.evaluate import right_in_steps, stats_of, top_tokens
from lessons_lib.training.loop import read_texts, schedule
from lessons_lib.training.medusa import HeadsRecipe, fresh, judge, look, total, train_step
from lessons_lib.training.prompts import interleave, own

__all__ = [
    "HeadsRecipe",
    "Text",
    "Writer",
    "top_tokens",
    "fresh",
    "interleave",
    "judge",
    "look",
    "own",
    "plan",
    "read_texts",
    "right_in_steps",
    "schedule",
    "total",
    "stats_of",
    "train_step",
]
