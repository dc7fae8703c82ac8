"""What a claim's note says of its rows: speed beside tokens per forward, texts that part, what its interval is of."""

from collections.abc import Sequence

from bench.by_question import speed, tokens_per_forward

SPREAD = "the interval is that of the questions, one run each"


def said(note: str, facts: dict, texts: int) -> str:
    """A claim's note: its own, what was predicted, and for each kind of text speed and tokens per forward."""
    found, beside = [note], facts["compiled"]
    if "predicted" in facts:
        found.append(f"speed behind the prompt {facts['behind_prompt']:.2f}, predicted {facts['predicted']:.2f}")
    found.append(f"speed at tokens per forward: {with_tau(facts)}")
    if beside:
        found += [f"compiled {beside['value']:.2f}: {with_tau(beside)}", beside["problem"]]
    apart = ", ".join(f"{name} {count}" for name, count in facts["parted"].items())
    found.append(f"of {texts} texts part from plain decoding on their own target: {apart}")
    found += [f"shortfall at most {facts['largest_shortfall']:.2g} logits", SPREAD]
    return "; ".join(filter(None, found))


def per_kind(kinds: dict[str, list[dict]], slow: str, fast: str) -> dict[str, dict[str, float]]:
    """For each kind of text the speed of `fast` over `slow`, and its tokens per forward."""
    return {
        "speed_by_category": {kind: speed(of, slow, fast).value for kind, of in kinds.items()},
        "tokens_per_forward": {kind: tokens_per_forward(of, fast) for kind, of in kinds.items()},
    }


def with_tau(facts: dict) -> str:
    """Speed and tokens per forward of each kind, as `per_kind` has them."""
    taus = facts["tokens_per_forward"]
    return ", ".join(f"{kind} {value:.2f} at {taus[kind]:.2f}" for kind, value in facts["speed_by_category"].items())


def parted(rows: Sequence[dict]) -> dict[str, int]:
    """For each method how many of its texts are not those of plain decoding on the same target in the same state."""
    flags = {name: [row[name]["equal"] for row in rows] for name, made in rows[0].items() if isinstance(made, dict)}
    return {name: of.count(False) for name, of in flags.items() if None not in of}
