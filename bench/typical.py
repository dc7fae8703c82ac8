"""What typical acceptance buys and what it gives away, on many drawn texts: `python -m bench.typical`, for lesson 09.

Every question is answered by plain sampling, by Medusa with the rule that leaves the law as it is, and by Medusa with
typical acceptance, at one temperature; the target then says how likely it finds each text.
"""

import json
import sys
from collections.abc import Sequence

import torch

from bench import asking, fitting
from bench.assisted import KINDS
from bench.by_question import first_of
from bench.medusa import PER_KIND
from bench.registry import DTYPE
from bench.run import RESULTS
from lessons_lib import Medusa, Sampling, Typical, generate
from lessons_lib.data import questions
from lessons_lib.decoding.generate import encode
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.proposers.medusa import TreeShape
from lessons_lib.decoding.sampling import Acceptance
from lessons_lib.measure import machine
from lessons_lib.progress import bar

TEMPERATURE, NEW, DRAWS, REPEATS = 0.7, 64, 3, 5
PLAIN = "plain"
RULES = {PLAIN: Sampling(TEMPERATURE), "lossless": Sampling(TEMPERATURE), "typical": Typical(temperature=TEMPERATURE)}


def main() -> int:
    """Draw the texts and store what each came to with the other results -> exit status."""
    asked = [question for question in first_of(questions(), KINDS, PER_KIND) for _ in range(DRAWS)]
    tree, noise = fitting.fitted(asking.eager(), REPEATS).tree, torch.Generator().manual_seed(0)
    rows = []
    for question in bar(asked, desc="typical", unit="text"):
        ids = encode(asking.eager(), question.messages)
        drawn = {name: written(ids, None if name == PLAIN else tree, rule, noise) for name, rule in RULES.items()}
        rows.append({"question_id": question.question_id, "category": question.category} | drawn)
    facts = {"temperature": TEMPERATURE, "nodes": len(tree.choices), "dtype": DTYPE, "rows": rows}
    facts |= {"host": machine.host(asking.model().device), "versions": machine.versions()}
    (RESULTS / "medusa-typical.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


def written(ids: Sequence[int], tree: TreeShape | None, rule: Acceptance, noise: torch.Generator) -> dict:
    """A text of NEW tokens at most, by Medusa's guesses or without: its tokens, the steps behind the prefill, and the
    mean log-probability of its tokens (nats) under the target at TEMPERATURE."""
    proposer = tree and Medusa(fitting.heads(), tree)
    out = generate(asking.eager(), ids, proposer, rule, max_new_tokens=NEW, generator=noise)
    logits = logits_along(asking.eager(), [*ids, *out.ids][:-1], len(out.ids)).float()
    p = Sampling(TEMPERATURE).probabilities(logits)
    liked = p[range(len(out.ids)), out.ids].log().mean().item()
    return {"tokens": len(out.ids), "steps": len(out.trace) - 1, "log_probability": liked}


if __name__ == "__main__":
    sys.exit(main())
