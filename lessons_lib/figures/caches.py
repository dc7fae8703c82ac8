"""What the key-value cache saves and what it costs (lesson 02), and attention masks as grids."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from lessons_lib.figures.rows import as_dicts, by_key
from lessons_lib.figures.style import BLUE, COLORS, CYCLE, PAPER, axes, color

MARKERS = "os^Dv<>P*X"  # lines of many models differ in marker as well as in colour


def plot_cache_cost(
    measured: Mapping[str, Sequence[float]],
    predicted: Mapping[str, Sequence[float]] | None = None,
    start: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Time of each new token by its position, with and without cache.

    measured, predicted: method ("cache", "no-cache") -> ms per token, the first at position `start`.
    """
    ax = ax or axes()
    for method, times in measured.items():
        ax.plot(range(start, start + len(times)), times, color=color(method), label=method)
    for method, times in (predicted or {}).items():
        ax.plot(range(start, start + len(times)), times, "--", color=color(method), linewidth=1.2)
    ax.set(xlabel="position [tokens]", ylabel="time per token [ms]", ylim=(0, None))
    ax.legend(title="dashed: predicted" if predicted else None)
    return ax


def plot_cache_memory(rows: Iterable[Any], memory: float | None = None, ax: Axes | None = None) -> Axes:
    """KV cache of several models against the tokens cached, log-log.

    rows: `model`, `tokens`, `bytes`; memory: bytes that are there for it, drawn as a limit.
    """
    ax = ax or axes((6.4, 4.2))
    for number, (model, group) in enumerate(by_key(as_dicts(rows), "model").items()):
        tokens, gib = [row["tokens"] for row in group], [row["bytes"] / 2**30 for row in group]
        marker, shade = MARKERS[number % len(MARKERS)], CYCLE[number % len(CYCLE)]
        size = max(4, 10 - number)  # smaller ones on top: two models with equal caches both show
        ax.plot(tokens, gib, marker=marker, markersize=size, color=shade, label=model)
    if memory is not None:
        ax.axhline(memory / 2**30, linestyle=":", color=COLORS["limit"])
        ax.annotate(f"{memory / 2**30:,.0f} GiB", (0.01, memory / 2**30), (0, 3), color=COLORS["limit"],
                    xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    ax.set(xlabel="tokens cached", ylabel="KV cache [GiB]")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    ax.tick_params(axis="x", rotation=30)
    ax.yaxis.set_major_formatter(lambda gib, _: f"{gib:.2g}")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def show_mask(
    allow: Any,
    row_labels: Sequence[str],
    col_labels: Sequence[str],
    ax: Axes | None = None,
) -> Axes:
    """A mask as a grid: row i may look at column j where allow[i, j] is true (filled, with a dot).

    allow: (rows, columns), anything that indexes and is true or false; labels as many as rows and columns.
    """
    cells = [[bool(allow[i][j]) for j in range(len(col_labels))] for i in range(len(row_labels))]
    ax = ax or axes((1.6 + 0.42 * len(col_labels), 1.2 + 0.36 * len(row_labels)))
    ax.imshow(cells, cmap=ListedColormap([PAPER, BLUE]), vmin=0, vmax=1)
    dots = [(i, j) for i, row in enumerate(cells) for j, allowed in enumerate(row) if allowed]
    ax.scatter([j for _, j in dots], [i for i, _ in dots], s=14, color=PAPER)
    ax.set_xticks(range(len(col_labels)), col_labels, rotation=45 if max(map(len, col_labels)) > 3 else 0)
    ax.set_yticks(range(len(row_labels)), row_labels)
    ax.set_xticks([j - 0.5 for j in range(1, len(col_labels))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, len(row_labels))], minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", color=COLORS["predicted"], linewidth=0.5)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(True)
    ax.set(xlabel="may look at (keys)", ylabel="token (queries)")
    return ax
