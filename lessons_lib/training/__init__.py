"""Training: a small draft distilled from a target (lesson 06), Medusa heads (lesson 09).

`python -m lessons_lib.training` runs the recipes.

collect             the target writes texts for the prompts (prompts), many at once (batched)
loop, checkpoint    what all training runs share: steps, rates, batches; the folder that a run is kept in
distill             a draft learns from the texts, by a loss; what it is worth in fewer bits
evaluate, bits      tokens per forward by replay; the same for drafts that are rounded
held_out            the prompts that drafts and heads are measured on
card                a stored draft's card, as data and as a page
heads, joint        Medusa heads trained alone, by heads_loss, or together with the model
evaluate_heads      what heads and their tree are worth, by replay
heads_card          the page of stored heads
heads_commands      their commands; those of the draft are in __main__
"""

from lessons_lib.training.batched import Text, Writer
from lessons_lib.training.collect import plan
from lessons_lib.training.evaluate import right_in_steps
from lessons_lib.training.evaluate_heads import favourites, trace_of
from lessons_lib.training.heads import HeadsRecipe, fresh, look, train_step
from lessons_lib.training.heads_loss import judge, total
from lessons_lib.training.loop import schedule
from lessons_lib.training.prompts import interleave, own

__all__ = [
    "HeadsRecipe",
    "Text",
    "Writer",
    "favourites",
    "fresh",
    "interleave",
    "judge",
    "look",
    "own",
    "plan",
    "right_in_steps",
    "schedule",
    "total",
    "trace_of",
    "train_step",
]
