"""The claim of lesson 08: lookahead on our own questions, greedy."""

from collections.abc import Sequence

from bench import common, questions
from bench.common import Measured, Run, claim, costs_of, listed
from bench.questions import EAGER, OWN, answered, asked, compression, measured, speed, with_and_without
from lessons_lib import Lookahead
from lessons_lib.measure.cost import width_cost

WINDOW = {"W": 5, "N": 4, "G": 5}
EAGER_STEPS = (
    f"passes over more than {max(questions.COMPILED)} tokens run eagerly: the compiled speedup is that of eager "
    "lookahead passes over compiled plain decoding"
)
WIDTHS = (1, 8, 16, 31)  # the widest: root, window and guess set of a lookahead step
PUBLISHED = 1.64  # tokens per step of lookahead on Spec-Bench: Vicuna-7B, W=7, N=5, G=7, batch 1; the same on two GPUs


@claim(
    "lookahead/code-lists/compression", ">= 1.3", f"plain decoding (1 token per pass); {EAGER}, counted", asks=OWN,
    says="On code and lists, a forward pass of lookahead decoding gives {number} tokens",
)  # fmt: skip
def code_lists(run: Run) -> Measured:
    methods = lambda ids: with_and_without(run, ids, "lookahead", lambda of: Lookahead(**WINDOW))  # noqa: E731
    rows = asked(run, ("code", "lists"), 5, methods)
    counted, expected = answered(rows), compressed(PUBLISHED, questions.TOKENS)
    wall, (share, several) = speed(counted, "plain", "lookahead"), useful(counted, "lookahead")
    v = costs_of(common.eager(), WIDTHS, run.repeats)
    sizes = ", ".join(f"{letter}={value}" for letter, value in WINDOW.items())
    note = (
        f"{sizes}; predicted {expected:.2f} from {PUBLISHED} tokens per step on Spec-Bench (Vicuna-7B, 7/5/7); "
        f"a share 1/f = {share:.2f} of the steps commits E = {several:.2f} tokens, the others one: "
        f"(f - 1 + E) / f = {1 + share * (several - 1):.2f} per step; "
        f"speedup {wall.value:.2f}; width curve: {listed({f'v({w})': c for w, c in v.items()})}; {EAGER_STEPS}"
    )
    facts = {"speed": [wall.value, wall.low, wall.high], "width_costs": v, "unit": "passes per token"}
    facts |= {"published": PUBLISHED, "expected": expected, "useful": [share, several], "settings": WINDOW}
    return measured(rows, compression, "plain", "lookahead", note, width_cost(v), **facts)


def compressed(tau: float, tokens: int) -> float:
    """CR of this many tokens at tau tokens per step; the first token comes from the prefill."""
    return tokens / (1 + (tokens - 1) / tau)


def useful(rows: Sequence[dict], name: str) -> tuple[float, float]:
    """(1/f, E) of Fu et al. 2024 (arXiv 2402.02057).

    1/f: the share of steps that commit several tokens. E: the mean number of tokens these commit, 1 if there are none.
    """
    steps, several, tokens = (sum(row[name][what] for row in rows) for what in ("forward_passes", "useful", "tokens"))
    steps, tokens = steps - len(rows), tokens - len(rows)  # the prefills commit one token each
    return several / steps, (tokens - (steps - several)) / several if several else 1.0
