"""Training: a small draft model distilled from a target (lesson 06), Medusa heads (lesson 09).

`python -m lessons_lib.training` runs the recipes.

prompts    prompts for the target, and the questions that evaluate drafts and heads
collect    batched generation of the target's answers, with its hidden states
loop       shared by all training runs: steps, learning rate, batches, checkpoints
distill    trains a draft model on the target's distribution
medusa     trains Medusa heads, alone or together with the model
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
