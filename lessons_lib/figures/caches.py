"""What key-value caches of several models take (lesson 02)."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import axes, look


def plot_cache_memory(rows: Iterable[Any]) -> Axes:
    """KV cache of several models against the tokens cached, log-log.

    rows: `model`, `tokens`, `bytes`. ValueError without rows.
    """
    ax = axes((6.4, 4.2))
    for number, (model, group) in enumerate(by_key(as_dicts(rows), "model").items()):
        tokens, gib = [row["tokens"] for row in group], [row["bytes"] / 2**30 for row in group]
        shade, marker = look(number)
        size = max(4, 10 - number)  # smaller ones on top: two models with equal caches both show
        ax.plot(tokens, gib, marker=marker, markersize=size, color=shade, label=model)
    ax.set(xlabel="tokens cached", ylabel="KV cache [GiB]")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    ax.tick_params(axis="x", rotation=30)
    ax.yaxis.set_major_formatter(lambda gib, _: f"{gib:.2g}")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax
