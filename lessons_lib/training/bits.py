"""More parameters or more bits (lesson 10): drafts of several sizes, trained alike, each rounded to several widths.

The question of Dettmers and Zettlemoyer 2022 (arXiv 2212.09720).
"""

from collections.abc import Sequence

from lessons_lib.models.draft import TrimmedDecoder, own_weights
from lessons_lib.models.quantized import quantized
from lessons_lib.quantization.formats import bits_of
from lessons_lib.training.batched import Text
from lessons_lib.training.evaluate import evaluate, mean

FORMATS = tuple(f"int{bits} g64 minimum" for bits in (2, 3, 4, 5, 6, 8))


def rounded_worth(draft: TrimmedDecoder, texts: Sequence[Text], formats: Sequence[str]) -> list[dict]:
    """A row for each format of the draft's own matrices, norms and the borrowed head left as they are.

    bits: a weight, scales and minima included. total: of all own matrices. tokens_per_forward: with 4 guesses a step,
    the mean over the kinds of text. right: the share of single guesses, likewise. ValueError for a name that is no
    format, or whose groups do not divide the rows.
    """
    matrices = [weight for weight in own_weights(draft).values() if weight.dim() == 2]
    rows = []
    for name in formats:
        total = sum(weight.numel() * bits_of(name, weight.shape[1]) for weight in matrices)
        found = evaluate(quantized(draft, name, head=None, values=True), texts)
        right = mean([kind["right"] for kind in found["kinds"].values()])
        row = {"format": name, "bits": total / sum(weight.numel() for weight in matrices), "total": total}
        rows.append(row | {"tokens_per_forward": found["macro"], "right": right})
    return rows
