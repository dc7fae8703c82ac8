"""What each technique is worth, in one table: counted, timed, predicted, beside its peer and what was published.

Rows are made from bench/results: the claims and, for counts and predictions, the raw samples beside them. Standard
library alone, so that README can be written before anything else is imported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from lessons_lib.measure import claims, tables

HEADINGS = (
    "technique", "answers counted", "tokens per forward", "speedup", "over", "predicted", "over its peer", "published",
)  # fmt: skip


@dataclass(frozen=True)
class Technique:
    """speed: the claim of how much faster than `over` it is. against: the claim that compares it with `peer`."""

    name: str
    speed: str
    over: str
    against: str = ""
    peer: str = ""
    published: str = ""


GPT_FAST = "gpt-fast, Llama-2-7B, A100-80GB, batch 1"
VICUNA = "Spec-Bench, Vicuna-7B, one A100, batch 1"
TECHNIQUES = (
    Technique("KV cache, behind 512 tokens", "cache/512/vs-uncached", "no cache"),
    Technique(
        "readable decoder, compiled", "decoder/bf16/vs-generate", "transformers generate, eager",
        published=f"4.2 x ({GPT_FAST})",
    ),
    Technique(
        "continuous batching", "serving/vs-sequential", "one request after another", "serving/vs-generate-batch",
        "transformers' continuous batching", "up to 23 x over static batches of 4 (Anyscale, vLLM, OPT-13B, A100-40GB)",
    ),
    Technique(
        "draft model", "assisted/mixed/vs-plain", "plain decoding", "assisted/vs-transformers",
        "transformers, assistant_model", f"1.52 x, 2.28 tokens ({VICUNA}, draft of 68M)",
    ),
    Technique(
        "prompt lookup, grounded prompts", "prompt-lookup/grounded/vs-plain", "plain decoding",
        "prompt-lookup/vs-transformers", "transformers, prompt_lookup_num_tokens",
        "2.4 x (Saxena 2023, CNN/DM, Mistral-7B, A100-40GB, batch 1)",
    ),
    Technique(
        "prompt lookup, free writing", "prompt-lookup/free/vs-plain", "plain decoding",
        published=f"1.66 x, 1.75 tokens ({VICUNA}, all tasks)",
    ),
    Technique(
        "lookahead, code and lists", "lookahead/code-lists/compression", "plain decoding",
        published=f"1.34 x, 1.64 tokens ({VICUNA})",
    ),
    Technique("Medusa", "medusa/vs-plain", "plain decoding", published=f"1.71 x, 2.31 tokens ({VICUNA})"),
    Technique(
        "weights and inputs in 8 bits, compiled", "int8/vs-generate", "transformers generate, eager",
        published=f"1.47 x over bf16, weights alone ({GPT_FAST})",
    ),
    Technique(
        "weights in 4 bits, compiled", "int4/vs-generate", "transformers generate, eager",
        published=f"1.89 x over bf16 ({GPT_FAST})",
    ),
    Technique(
        "the ladder, free writing", "ladder/free/vs-generate", "transformers generate, eager",
        "ladder/plain/vs-llamacpp-best", "llama.cpp, plain; ours without guesses, both kinds of prompts",
    ),
    Technique(
        "the ladder, grounded prompts", "ladder/grounded/vs-generate", "transformers generate, eager",
        "ladder/grounded/vs-llamacpp-best", "llama.cpp, plain or with its prompt lookup",
        f"9.6 x (compiled, int4, a draft; {GPT_FAST})",
    ),
)  # fmt: skip


def cells(results: Path) -> list[list[str]]:
    """A row under HEADINGS for every technique whose speed was measured. results: the folder of claims.json.

    ValueError for a file there that is damaged.
    """
    known = {row.claim: row for row in claims.load(results / "claims.json") if row.value is not None}
    return [_row(technique, known, results) for technique in TECHNIQUES if technique.speed in known]


def write(results: Path, path: Path) -> Path:
    """Both tables, techniques and claims, as one self-contained HTML page, and as Markdown beside it; gives its path.

    ValueError as `cells`.
    """
    named = claims.load(results / "claims.json")
    parts = ["Techniques:", (HEADINGS, cells(results)), "Claims:", (claims.HEADINGS, claims.cells(named))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(tables.html_page("Benchmarks", parts), encoding="utf-8")
    path.with_suffix(".md").write_text(tables.markdown_page("Benchmarks", parts), encoding="utf-8")
    return path


def _row(technique: Technique, known: dict[str, claims.ClaimRow], results: Path) -> list[str]:
    row, raw, peer = known[technique.speed], _raw(results, technique.speed), known.get(technique.against)
    return [
        technique.name,
        _answers(raw.get("questions", [])),
        _tau(raw.get("tokens_per_forward")),
        f"{tables.number(raw['speed'][0])} x" if "speed" in raw else _value(row),  # where the claim counts forwards
        "; ".join(filter(None, [technique.over, row.host and f"on {row.host}"])),
        f"{tables.number(raw['predicted'])} x" if "predicted" in raw else "-",
        f"{_value(peer)} ({technique.peer})" if peer else "-",
        technique.published or "-",
    ]


def _raw(results: Path, claim: str) -> dict[str, Any]:
    """The raw samples of a claim; {} if the file is not there."""
    path = results / f"{claim.replace('/', '-')}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _answers(rows: list[dict[str, Any]]) -> str:
    """How many answers were long enough to count, and to questions of which kinds."""
    kinds = [row["category"] for row in rows if "short" not in row]
    return f"{len(kinds)}: {', '.join(dict.fromkeys(kinds))}" if kinds else "-"


def _tau(found: dict[str, float] | float | None) -> str:
    """Tokens per forward, those of several kinds of text as their mean."""
    if found is None:
        return "-"
    return tables.number(mean(found.values()) if isinstance(found, dict) else found)


def _value(row: claims.ClaimRow) -> str:
    return f"{tables.number(row.value)} {row.unit}"
