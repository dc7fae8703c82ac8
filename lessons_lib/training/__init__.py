"""Training: a small draft model distilled from a target (lesson 06), Medusa heads (09), early exits (13).

`python -m lessons_lib.training` runs the recipes.

prompts    prompts for the target, and the questions that evaluate drafts and heads
collect    batched generation of the target's answers, with its hidden states
loop       shared by all training runs: steps, learning rate, batches, checkpoints
distill    trains a draft model on the target's distribution
medusa     trains Medusa heads on a frozen model
evaluate   tokens per forward pass of drafts and heads, by replay

text_to_sql   the task that LayerSkip fine-tunes on
layerskip     layer dropout and early-exit loss, and the quality of every exit
exit_adapter  trains an adapter for one exit of a model that stays as it is
"""

from lessons_lib.training.collect import Writer, plan
from lessons_lib.training.evaluate import right_in_steps
from lessons_lib.training.layerskip import dropout_rates, exit_weights, gradual, rotational
from lessons_lib.training.loop import schedule
from lessons_lib.training.medusa import HeadsRecipe, fresh, judge, look, train_step
from lessons_lib.training.prompts import interleave, own
from lessons_lib.training.text_to_sql import text_to_sql

__all__ = [
    "HeadsRecipe",
    "Writer",
    "dropout_rates",
    "exit_weights",
    "fresh",
    "gradual",
    "interleave",
    "judge",
    "look",
    "own",
    "plan",
    "right_in_steps",
    "rotational",
    "schedule",
    "text_to_sql",
    "train_step",
]
