"""Every plot and widget of every lesson is drawn once from small inputs, and all of its text can be read."""

from types import SimpleNamespace

import IPython.display
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.heads import SIX

from lessons_lib import PromptLookup
from lessons_lib.attention import Memory, tiled
from lessons_lib.course import (
    assisted,
    attention,
    figures,
    kv_cache,
    ladder,
    lookahead,
    medusa,
    prompt_lookup,
    quantization,
    sparsity,
    streaming,
)
from lessons_lib.course.display import figure_of, problems
from lessons_lib.decoding.prediction import Recording, replay
from lessons_lib.decoding.proposers.tree_shape import TreeShape, regular
from lessons_lib.measure.clock import Samples
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.cost import StepCost, width_curve

SMOL = CONFIGS["smollm2-135m"]
WIDTHS = {1: 1.0, 8: 1.5, 31: 3.0, 64: 5.0}
CURVE = {w: SimpleNamespace(median=v, times=(v, 1.1 * v)) for w, v in WIDTHS.items()}
NORMAL = torch.randn(32, 576, generator=torch.Generator().manual_seed(0))
ACCURACIES = [[0.6, 0.2, 0.1], [0.5, 0.2]]
COPIED = Recording([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9])


def rows(**columns):
    """Rows of dicts from columns of equal length."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


COPIES = [("I say ", "model"), ("what you said, ", "prompt"), ("again $x$", "answer")]
DRAFTED = assisted.Drafted([1, 2, 3, 4, 5, 6], [2, 3, 9, 5, 6])
RUNGS = [
    {"configuration": "slow", "speed": 10.0, "predicted": 12.0},
    {"configuration": "fast", "speed": 40.0, "below": "slow", "predicted": 50.0},
    {"configuration": "rounded", "speed": 80.0, "below": "fast", "counts": False},
    {"configuration": "draft tokens", "speed": 20.0, "below": "fast", "counts": True},
    {"configuration": "other", "speed": 30.0, "peer": True},
]
PARTS = ladder.Parts(
    {
        "slow": StepCost(weight_bytes=100, bandwidth=100),
        "fast": StepCost(weight_bytes=25, bandwidth=100, v={1: 1.0, 3: 2.0}),
    },
    {"copied": [COPIED]},
    {"lookup": lambda text, gamma: replay(text, PromptLookup(gamma, rule="transformers"))},
    {"lookup": 0.0},
)
TRAINING = [{"step": 1, "loss": 9}, {"step": 2, "loss": 7, "held_loss": 8, "top1": [0.5, 0.2], "top5": [0.7, 0.4]},
            {"step": 4, "loss": 6, "held_loss": 6, "top1": [0.6, 0.3], "top5": [0.8, 0.45]}]  # fmt: skip

PLOTS = {
    "shared: width curve": lambda: figures.plot_width_curve({"decoder": CURVE, "compiled": CURVE}),
    "shared: lines": lambda: figures.plot_lines(
        [{"label": n, "x": x, "y": x + i} for i, n in enumerate("ab") for x in (1, 8)], "x", "y", "log"),
    "04 many tiles": lambda: attention.plot_tiles(64, 1, 1),
    "06 overlap": lambda: assisted.plot_overlap([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], "abc"),
    "06 when it pays": lambda: assisted.plot_pays(
        {"here": [(0.5, 0.9), (0.25, 0.4)], "nowhere": [(0.5, 2.0)]}, [("ours", 0.1, 0.7), ("other", 0.1, 0.71)]),
    "07 spans": lambda: prompt_lookup.plot_spans(COPIES),
    "08 trajectory": lambda: lookahead.plot_trajectory([[5, 5, 4, 5], [0, 2, 2, 2], [0, 1, 0, 6], [0, 1, 4, 6]]),
    "08 wide mask": lambda: lookahead.draw_lookahead(WIDTHS, 8, 6, 5)[0],
    "09 tree and mask": lambda: medusa.plot_tree_and_mask(TreeShape.of(SIX)),
    "09 large tree": lambda: medusa.plot_tree_and_mask(regular(41)),
    "09 no tree": lambda: medusa.plot_tree_and_mask(TreeShape.of([])),
    "09 training": lambda: medusa.plot_heads_training(TRAINING),
    "09 accuracies": lambda: medusa.plot_head_accuracies([[0.5, 0.25, 0.125], [0.25, 0.125]]),
    "10 levels": lambda: quantization.plot_levels({"three": [-1, 0, 1], "five": [-1, -0.5, 0, 0.5, 1]}),
    "10 rounding": lambda: quantization.plot_rounding(NORMAL, NORMAL.round()),
    "10 dots": lambda: quantization.plot_dots(
        [{"label": n, "method": m, "dB": i + 10 * j} for i, n in enumerate("ab") for j, m in enumerate("xy")], "dB"),
    "10 groups": lambda: quantization.plot_groups(
        [{"label": "int4", "group": g, "error": g / 10} for g in (16, 64, 576)], "error"),
    "10 duel": lambda: quantization.plot_duel(rows(label="wx", a=(0.01, 0.05), b=(0.03, 0.02)), "a", "b"),
    "10 channels": lambda: quantization.plot_channels(
        {"x": torch.tensor([1.0, 9.0, 4.0]), "w": torch.tensor([30.0, 10.0, 20.0])}, "size"),
    "11 waterfall": lambda: figures.plot_waterfall(RUNGS),
    "11 quality": lambda: ladder.plot_quality(
        rows(configuration=("generate", "int8, rotated", "int8, plain"), speed=(40.0, 90.0, 91.0),
             loss=(0.0, 0.004, 0.006), bytes=(5e8, 1e8, 1e8)), 0.01),
    "11 published": lambda: ladder.plot_published(
        {"a": [("eager", 1), ("compiled", 5), ("int8", 9)], "b": [("plain", 1), ("fused", 4.7), ("4 bits", 8.6)]}),
}  # fmt: skip


@pytest.mark.parametrize("draw", PLOTS.values(), ids=PLOTS)
def test_all_text_of_a_plot_can_be_read(draw):
    assert problems(figure_of(draw())) == []


def say(ids):
    return "".join("_abcdefghi"[token] for token in ids)


WIDGETS = {
    "02": (lambda: kv_cache.show_kv_cache(), ["8 requests of 2,048 tokens"]),
    "04": (lambda: attention.show_attention(32, 64, 2048), ["2,048 tokens in tiles of 32 queries and 64 keys"]),
    "06": (lambda: assisted.show_draft_length({"chat": DRAFTED}, 0.1, WIDTHS, say, 4),
           ["of 6 tokens 3 were drafted and accepted, 3 are the target's own, 1 draft tokens were rejected"]),
    "07": (lambda: prompt_lookup.show_prompt_lookup({"copy": [COPIED], "free": [COPIED]}, WIDTHS),
           ["up to 3 tokens, 10 draft tokens"]),
    "08": (lambda: lookahead.show_lookahead(WIDTHS, 5, 4, 2), ["21 tokens fed, at most 4 committed"]),
    "09": (lambda: medusa.show_medusa(ACCURACIES, WIDTHS, 0.1, 4), ["Draft tokens: 2 of head 1, 2 of head 2."]),
    "10": (lambda: quantization.show_quantization(
        NORMAL, SMOL, lambda read: 1 / (0.01 + read / 1e9), {"int4 g32 affine": 30.5, "exact": 29.0}),
        ["int4 g32 affine: 5.00 bits a weight, error 7"]),
    "11": (lambda: ladder.show_ladder(PARTS, 4), ["slow 1, then fast 4, then fast + lookup"]),
    "12": (lambda: sparsity.show_limits(SMOL), ["50% zero in one row: 50% skipped by all; times as fast at"]),
    "16": (lambda: streaming.show_streaming(), ["0 sinks and a window of 1,020: mean loss from token 1,024 on: 3.3"]),
}  # fmt: skip


@pytest.mark.parametrize(("show", "said"), WIDGETS.values(), ids=WIDGETS)
def test_a_widget_is_stored_as_still_figures_whose_text_can_be_read_and_whose_alt_text_has_its_numbers(
    show, said, monkeypatch
):
    shown = []
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    monkeypatch.setenv("LESSONS_LIB_STORING", "1")  # display refuses text that cannot be read
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    show()
    assert all("image/png" in data for data in shown)
    assert len(shown) == len(said) and all(words in data["text/plain"] for words, data in zip(said, shown, strict=True))


# What pictures count


def test_the_tiles_drawn_are_those_that_attention_loads():
    for T, block_q, block_k in [(12, 2, 3), (18, 3, 3), (12, 4, 2)]:
        memory, x = Memory(), torch.zeros(1, T, 4)
        tiled(x, x, x, block_q, block_k, causal=True, memory=memory)
        states = attention.tile_states(T, block_q, block_k)
        visited = sum(state != attention.SKIPPED for row in states for state in row)
        assert memory.read == T * 4 + visited * 2 * block_k * 4


def test_the_lookahead_mask_drawn_is_the_loops_own():
    allow, names, offsets = lookahead.lookahead_mask(3, 3, 1)
    order = [names.index(name) for name in ("root", "0,1", "0,2", "1,0", "1,1", "1,2", "A1", "A2")]
    assert ["".join(str(int(x)) for x in row) for row in allow[order][:, order]] == [
        "10000000", "11000000", "11100000", "10010000", "11001000", "11100100", "10000010", "10000011"
    ]  # fmt: skip
    assert [offsets[i] for i in order] == [0, 1, 2, 1, 2, 3, 1, 2]


def test_a_jacobi_token_is_settled_only_if_all_before_it_are_right():
    W, L, S = lookahead.WRONG, lookahead.LUCKY, lookahead.SETTLED
    rounds = [[5, 5, 4, 5], [0, 2, 2, 2], [0, 1, 0, 6], [0, 1, 4, 6]]
    assert lookahead.trajectory_states(rounds) == [[W, W, L, W], [S, W, W, W], [S, S, W, L], [S, S, S, S]]


@given(st.lists(st.tuples(st.text("ab \n", min_size=1), st.sampled_from("xy"))), st.integers(1, 9))
def test_no_character_of_a_coloured_text_is_lost_or_laid_over_another(pieces, columns):
    with pytest.MonkeyPatch.context() as patch:  # a fixture would be shared by all of Hypothesis' examples
        patch.setattr(figures, "COLUMNS", columns)
        spans = figures.lay_out(pieces)
    taken = [(line, column + i) for line, column, text, _ in spans for i in range(len(text))]
    assert len(taken) == len(set(taken)) and all(column < columns for _, column in taken)
    assert "".join(text for *_, text, _ in spans) == "".join(text for text, _ in pieces).replace("\n", "")


@pytest.mark.parametrize(("tokens", "text"), [([2], "a"), ([0, 3, 0], "b"), ([1], "\\n"), ([2, 0, 1, 4], "a \\nc")])
def test_a_word_is_one_line_without_blanks_around_it(tokens, text):
    letters = SimpleNamespace(decode=lambda tokens: "".join(" \nabc"[token] for token in tokens))
    assert figures.word(letters, *tokens) == text


def test_the_width_curve_drawn_is_that_of_the_cost_model_even_when_the_machine_drifts():
    curve = {1: Samples((1.0, 4.0, 2.0)), 4: Samples((9.0, 4.0, 5.0))}
    ax = figures.plot_width_curve({"decoder": curve})
    assert ax.get_ylim()[1] > max(t / t_1 for t, t_1 in zip(curve[4].times, curve[1].times, strict=True))  # whole bars
    drawn = ax.get_lines()[0]
    assert dict(zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)) == width_curve(curve) == {1: 1.0, 4: 2.5}
