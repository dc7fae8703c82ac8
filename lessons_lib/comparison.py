"""Compare techniques on one model and the same prompts: run in turn, timed, counted, with the tokens compared.

    runs = compare(load(), "Once upon a time", {"plain": None, "prompt lookup": PromptLookup()})
    runs                          # a table
    runs.recommendation           # which one to use, and why
    runs["prompt lookup"].text    # the Output of one technique

All techniques are compared with the first one. Passes, tokens per pass and speed are those of decoding, after the
prefill; only the column "whole request" counts the prefill, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from lessons_lib.advice import EXACT, HEADINGS, OTHER, PEER, Row, recommendation, recommended
from lessons_lib.decoding.checks import kind
from lessons_lib.decoding.generate import Output, after_prefill, generate
from lessons_lib.decoding.peers import TransformersGenerate
from lessons_lib.decoding.probing import Divergence, first_divergence
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import CompiledTarget, Target, TransformersTarget, as_target
from lessons_lib.decoding.text import Prompt, encode
from lessons_lib.measure import clock, tables
from lessons_lib.measure.clock import Interval, Ratio, no_gc, rate_ratio
from lessons_lib.measure.config import ModelConfig
from lessons_lib.models.device import out_of_memory
from lessons_lib.models.hub import LanguageModel
from lessons_lib.progress import bar, first_line
from lessons_lib.quantization.linear import QuantizedLinear
from lessons_lib.quantization.model import bytes_kept

Engine = Callable[[list[int], int], Output]  # prompt ids, max_new_tokens -> output
Technique = Proposer | Target | LanguageModel | tuple[Any, Proposer | None] | Engine | None
WARM_UP = 8  # tokens of a technique's untimed run
SLOW = 3  # what takes this many times plain's time per token is left out where time is short
FEWEST = 16  # tokens per text, however short the time


def compare(
    model,
    prompts: Prompt | Sequence[Prompt],
    techniques: Mapping[str, Technique],
    max_new_tokens: int = 128,
    repeats: int = 3,
) -> "Comparison":
    """Run techniques in turn on one or several prompts, greedily -> a Comparison, which shows as a table.

    model: what `generate` takes: a LanguageModel, a Target, or a causal LM of transformers.
    prompts: one prompt as for `generate` (text, ids, messages), or a list of them.
    techniques: name -> one of
        None or a proposer      plain decoding with the model, or decoding with this proposer
        a target                plain decoding with another target, such as a quantized one
        (target, proposer)      both
        a function              (prompt ids, max_new_tokens) -> Output: another engine, such as `TransformersGenerate`
    repeats: how often every technique runs on every prompt, in alternation, after an untimed run. With one prompt the
        interval of a speedup comes from its repeats, with several from the prompts.

    A technique that the model does not support, or that runs out of memory, gets a row that says so.
    """
    comparison = Comparison(model, prompts, techniques, max_new_tokens, repeats)
    for _ in bar(comparison.runs(), total=comparison.total, desc="comparing", unit="run"):
        pass
    return comparison


class Comparison:
    """Techniques side by side on one model; a table in notebooks, and text elsewhere.

    comparison[name] is the Output of a technique: one for one prompt, a list for several.
    """

    def __init__(self, model, prompts, techniques: Mapping[str, Technique], max_new_tokens: int, repeats: int):
        self.target, self.max_new_tokens, self.repeats = as_target(model), max_new_tokens, clock.runs(repeats)
        self.single = not several(prompts)
        self.prompts = [encode(self.target, prompt) for prompt in ([prompts] if self.single else prompts)]
        if not techniques or not self.prompts:
            raise ValueError("a comparison needs a prompt and a technique, such as {'plain': None}")
        self.engines = {name: self._engine(name, technique) for name, technique in techniques.items()}
        self.first = next(iter(self.engines))
        self.outputs: dict[tuple[str, int, int], Output] = {}  # (technique, prompt, repeat)
        self.divergences: dict[tuple[str, int], Divergence | None] = {}  # (technique, prompt), once computed
        self.problems: dict[str, str] = {}  # technique: why it was not measured
        self.trials: dict[str, tuple[list[int], Output]] = {}  # the untimed runs, with their prompts
        self.unlimited = 0.0  # seconds that the timed runs would take without a limit, by these trials

    # --- Running

    @property
    def total(self) -> int:
        """Number of runs, untimed ones included."""
        return len(self.engines) * (1 + self.repeats * len(self.prompts))

    def runs(self, seconds: float | None = None) -> Iterator[str]:
        """Run everything, yielding a technique's name after each run. At any time, what was measured can be shown.

        seconds: for the timed runs; see `fit`.
        """
        # Warm up on a prompt of middle length, or the next one if its text ends in the prefill. A compiled target
        # compiles at its first pass of each width, so it runs as long as it will be timed
        middle = median(map(len, self.prompts))
        by_length = sorted(self.prompts, key=lambda ids: abs(len(ids) - middle))
        for name, engine in self.engines.items():
            whole = isinstance(getattr(engine, "target", None), CompiledTarget)
            new = self.max_new_tokens if whole else min(WARM_UP, self.max_new_tokens)
            for ids in by_length:
                for _ in range(1 if self.target.device.type == "cpu" else 2):  # a GPU first loads its kernels
                    out = self._try(name, ids, new)
                if out is None or after_prefill(out.stats):
                    break
            if out is not None:
                self.trials[name] = ids, out
            yield name
        if seconds is not None:
            self.fit(seconds)
        # Run in turn, every other time backwards
        for prompt, ids in enumerate(self.prompts):
            for repeat in range(self.repeats):
                for name in list(self.engines)[:: -1 if (prompt + repeat) % 2 else 1]:
                    out = self._try(name, ids, self.max_new_tokens)
                    if out is not None:
                        self.outputs[name, prompt, repeat] = out
                    yield name

    def fit(self, seconds: float) -> None:
        """Let the timed runs take about this long: leave out what was SLOW in its trial, then shorten the texts.

        Nothing changes if the time is enough. Texts keep FEWEST tokens, even if they take longer than that.
        """
        # Time per token of each technique, and of its prefill per prompt token, from the untimed runs
        pace, prefill = {}, {}
        for name, (ids, out) in self.trials.items():
            steps = after_prefill(out.stats)[1:] or after_prefill(out.stats)  # the first one prepares much
            if steps:
                pace[name] = median(step.t_total for step in steps) / mean(step.committed for step in steps)
                prefill[name] = sum(step.t_total for step in out.stats if step.is_prefill) / len(ids)

        def reading() -> float:
            return sum(map(len, self.prompts)) * sum(prefill.values())

        def affordable() -> float:  # tokens per text that the time allows
            return (seconds / self.repeats - reading()) / (len(self.prompts) * sum(pace.values()))

        writing = self.max_new_tokens * len(self.prompts) * sum(pace.values())
        self.unlimited = self.repeats * (reading() + writing)

        if self.first not in pace or affordable() >= self.max_new_tokens:
            return
        for name in [name for name in pace if pace[name] > SLOW * pace[self.first]]:
            gain = pace[self.first] / pace.pop(name)
            prefill.pop(name)
            self.problems[name] = f"left out for time: {gain:.2f} times as fast in a trial of {WARM_UP} tokens"
        self.max_new_tokens = min(self.max_new_tokens, max(FEWEST, int(affordable())))

    def _try(self, name: str, ids: list[int], new: int) -> Output | None:
        """Run a technique; one that cannot run is left out from then on. The first one must run."""
        if name in self.problems:
            return None
        try:
            with no_gc():
                return self.engines[name](ids, new)
        except Exception as error:
            reason = why_not(self.engines[name], error)
            if not reason or name == self.first:
                raise
            self.problems[name] = reason
            return None

    def _engine(self, name: str, technique: Technique) -> Engine:
        if technique is None or isinstance(technique, Proposer):
            return Ours(self.target, technique)
        if isinstance(technique, tuple) and len(technique) == 2 and isinstance(technique[1], Proposer | None):
            return Ours(as_target(technique[0]), technique[1])
        if isinstance(technique, Target | LanguageModel):
            return Ours(as_target(technique), None)
        if callable(technique) and not isinstance(technique, type):
            return technique
        raise TypeError(f"{name!r} must be None, a proposer, a target or (target, proposer), not {kind(technique)}")

    # --- Results

    def __getitem__(self, name: str) -> Output | list[Output]:
        if name in self.problems:
            raise KeyError(f"{name!r} was not measured: {self.problems[name]}")
        outputs = [out for (of, _, repeat), out in self.outputs.items() if of == name and repeat == 0]
        return outputs[0] if self.single and outputs else outputs

    @property
    def rows(self) -> list[Row]:
        """A Row per technique that was measured, or that says why it was not."""
        return [row for name in self.engines if (row := self.row(name)) is not None]

    @property
    def recommendation(self) -> str:
        """What to use for this model on this machine, and why, in a sentence or two."""
        return recommendation(self.rows)

    def row(self, name: str, prompts: Sequence[int] | None = None) -> Row | None:
        """The Row of a technique, over all prompts or those of these indices; None if it was not measured."""
        if name in self.problems:
            return Row(name, problem=self.problems[name])
        # Only what the first technique ran, too, can be compared
        keys = [(prompt, repeat) for of, prompt, repeat in self.outputs if of == name]
        keys = [key for key in keys if (self.first, *key) in self.outputs and (prompts is None or key[0] in prompts)]
        measured = sorted({prompt for prompt, _ in keys})
        if not measured:
            return None
        outputs = [self.outputs[name, prompt, 0] for prompt in measured]
        steps = [step for out in outputs for step in after_prefill(out.stats)]
        tokens, seconds = map(sum, zip(*self._speeds(name, keys).values(), strict=True)) if steps else (nan, nan)
        longest = max(len(self.prompts[p]) + len(out.ids) for p, out in zip(measured, outputs, strict=True))
        gaps = [self._divergence(name, prompt) for prompt in measured]
        same = tuple(out.ids == self.outputs[self.first, p, 0].ids for p, out in zip(measured, outputs, strict=True))
        # No gap, although the texts differ: one is the beginning of the other, which rounding does not explain
        agrees = all(equal or (gap is not None and gap.near_tie) for equal, gap in zip(same, gaps, strict=True))
        return Row(
            name,
            passes=len(steps),
            tokens_per_pass=sum(step.committed for step in steps) / len(steps) if steps else nan,
            tokens_per_second=tokens / seconds,
            speedup=self._speedup(name, keys) if name != self.first and steps else None,
            whole=self._speedup(name, keys, whole=True) if name != self.first and steps else None,
            same=same,
            divergence=max(filter(None, gaps), key=lambda gap: gap.margin, default=None),
            memory=memory_of(self.engines[name], longest),
            role=self._role(name, agrees),
        )

    def _role(self, name: str, agrees: bool) -> str:
        """One of advice's roles. agrees: whether its texts are those of the first technique, except at near ties."""
        engine = self.engines[name]
        if not isinstance(engine, Ours):
            return PEER
        decoder = getattr(engine.target, "decoder", None)
        quantized = decoder is not None and any(isinstance(module, QuantizedLinear) for module in decoder.modules())
        same_weights = engine.target is self.target or (agrees and not quantized)
        return EXACT if same_weights else OTHER

    def _divergence(self, name: str, prompt: int) -> Divergence | None:
        """Where a technique's tokens leave those of the first one, with the logit gap there; None if they do not."""
        if (name, prompt) not in self.divergences:
            expected, found = (self.outputs[of, prompt, 0].ids for of in (self.first, name))
            self.divergences[name, prompt] = first_divergence(self.target, self.prompts[prompt], expected, found)
        return self.divergences[name, prompt]

    def _speeds(self, name: str, keys: Sequence[tuple[int, int]], whole: bool = False) -> dict[int, tuple]:
        """(tokens, seconds) of each prompt over its repeats, or of each repeat if there is one prompt.

        whole: with the prefill, else only what follows it. Texts of which nothing follows are left out.
        """
        groups: dict[int, list] = {}
        for prompt, repeat in keys:
            stats = self.outputs[name, prompt, repeat].stats
            group = groups.setdefault(repeat if len(self.prompts) == 1 else prompt, [])
            group.extend(stats if whole else after_prefill(stats))
        total = lambda steps: (sum(s.committed for s in steps), sum(s.t_total for s in steps))  # noqa: E731
        return {key: total(steps) for key, steps in groups.items() if steps}

    def _speedup(self, name: str, keys: Sequence[tuple[int, int]], whole: bool = False) -> Ratio | None:
        """Over the first technique, on the texts of which both have something to time; None if there are none."""
        plain, ours = (self._speeds(of, keys, whole) for of in (self.first, name))
        both = [key for key in plain if key in ours]  # a draft in the prefill may have written a whole short text
        return rate_ratio([plain[key] for key in both], [ours[key] for key in both]) if both else None

    def _table(self) -> tables.Table:
        return HEADINGS, [row.cells() for row in self.rows]

    def record(self) -> dict[str, Any]:
        """Rows and single runs, ready for JSON. Times are in seconds; "decode" is what follows the prefill."""
        runs = []
        for (name, prompt, repeat), out in self.outputs.items():
            prefill = sum(step.t_total for step in out.stats if step.is_prefill)
            runs.append({
                "technique": name, "prompt": prompt, "repeat": repeat, "prompt_tokens": len(self.prompts[prompt]),
                "new_tokens": len(out.ids), "forward_passes": len(out.stats), "prefill_seconds": prefill,
                "decode_seconds": sum(step.t_total for step in after_prefill(out.stats)), "finish": out.finish,
                "text": out.text,
            })  # fmt: skip
        return {"techniques": [row.record() for row in self.rows], "runs": runs}

    def plot(self, title: str = ""):
        """Speedups of decoding as bars, each with its interval and its tokens per second -> a matplotlib Figure."""
        from matplotlib.figure import Figure

        best = recommended(self.rows)
        rows = [row for row in self.rows if not row.problem][::-1]
        figure = Figure(figsize=(7, 1.2 + 0.4 * len(rows)), layout="constrained")
        ax = figure.subplots()
        for at, row in enumerate(rows):
            gain = row.speedup or Interval(1.0, 1.0, 1.0)
            whiskers = [[gain.value - gain.low], [gain.high - gain.value]]
            ax.barh(at, gain.value, color="C0" if row.speedup else "0.6", xerr=whiskers, capsize=3)
            ax.annotate(
                f"{row.tokens_per_second:.3g} tokens/s",
                (gain.high, at),
                (6, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # hides the line at 1 behind the number
            )
        ax.axvline(1, color="0.4", linewidth=1, zorder=0)
        names = [f"{row.name}\n(recommended)" if best and row.name == best.name else row.name for row in rows]
        ax.set_yticks(range(len(rows)), names)
        widest = max(row.speedup.high if row.speedup else 1.0 for row in rows)
        whiskers = f"whiskers: 95% interval, or lowest to highest of fewer than {clock.FEWEST_PAIRS} runs"
        label = f"decoding, times as fast as {self.first} ({whiskers})"
        ax.set(xlim=(0, 1.35 * widest), xlabel=label, title=title)
        return figure

    def __repr__(self) -> str:
        return tables.text(*self._table())

    def _repr_html_(self) -> str:
        return tables.html(*self._table())


@dataclass(frozen=True)
class Ours:
    """Greedy decoding by `generate` with a target and a proposer."""

    target: Target
    proposer: Proposer | None

    def __call__(self, ids: list[int], max_new_tokens: int) -> Output:
        return generate(self.target, ids, self.proposer, max_new_tokens=max_new_tokens)


def why_not(engine: Engine, error: Exception) -> str:
    """Why this engine cannot run here, in one sentence; "" if the error is a fault of the program."""
    if out_of_memory(error):
        return "out of memory"
    if isinstance(error, ValueError):
        return first_line(error)
    # transformers does not check every model first: prompt lookup fails with an AttributeError on one without a cache
    if isinstance(engine, TransformersGenerate) and not isinstance(error, RuntimeError):
        return f"transformers raises {type(error).__name__} ({first_line(error)})"
    return ""


def several(prompts: Any) -> bool:
    """Whether these are several prompts: a list of texts, of messages, of ids or of a tokenizer's outputs."""
    if not isinstance(prompts, list | tuple) or not prompts:
        return False
    encoded = isinstance(prompts[0], Mapping) and "input_ids" in prompts[0]
    return encoded or isinstance(prompts[0], str | list | tuple | torch.Tensor | np.ndarray)


def memory_of(engine: Engine, tokens: int) -> float | None:
    """Bytes of the weights of target and draft model, and of a KV cache of `tokens` tokens; None where unknown."""
    target = getattr(engine, "target", None)
    draft = getattr(getattr(engine, "proposer", None), "draft", None)
    parts = [held_by(of, tokens) for of in (target, draft) if of is not None]
    return sum(parts) if parts and None not in parts else None


def held_by(target: Target, tokens: int) -> float | None:
    """Bytes of a target's weights and of its KV cache after `tokens` tokens; None for a target of another kind."""
    if streaming := getattr(target, "streaming", None):
        tokens = min(tokens, streaming.capacity + streaming.chunk)  # the slots of its cache
    if decoder := getattr(target, "decoder", None):
        return bytes_kept(decoder) + decoder.config.kv_elements(tokens) * decoder.norm.element_size()
    if not isinstance(target, TransformersTarget):
        return None
    network = target.network
    try:
        cache = ModelConfig.from_transformers(network.config).kv_elements(tokens) * network.dtype.itemsize
    except ValueError:  # a model without attention
        return None
    return sum(part.nbytes for part in network.parameters()) + cache
