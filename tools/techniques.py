"""One row per technique: the claim of its speed beside counted, predicted and published values."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from lessons_lib.measure import tables
from lessons_lib.measure.results import Result, load

TECHNIQUES = (
    "technique", "answers counted", "tokens per pass", "speedup", "over", "predicted", "over its peer", "published",
)  # fmt: skip
GPT_FAST = "gpt-fast, Llama-2-7B, A100-80GB, batch 1"
VICUNA = "Spec-Bench, Vicuna-7B, one A100, batch 1"


@dataclass(frozen=True)
class Technique:
    """A technique and what is known of it before it is measured.

    speed, peer: names of the claims of its speed over `over` and over its peer, the official implementation.
    published: a published speedup, from `source`.
    """

    name: str
    speed: str
    over: str
    peer: str = ""
    peer_name: str = ""
    published: float | None = None
    source: str = ""


KNOWN = (
    Technique("KV cache, after 512 tokens", "cache/512/vs-uncached", "no cache"),
    Technique(
        "our decoder, compiled", "decoder/bf16/vs-generate", "transformers generate, eager",
        published=4.2, source=GPT_FAST,
    ),
    Technique(
        "continuous batching", "serving/vs-sequential", "one request after another", "serving/vs-generate-batch",
        "transformers' continuous batching, its start-up included", 23,
        "at most, over static batches of 4; Anyscale, OPT-13B, A100-40GB",
    ),
    Technique(
        "draft model", "assisted/mixed/vs-plain", "plain decoding", "assisted/vs-transformers",
        "transformers, assistant_model", 1.52, f"at 2.28 tokens per forward pass; {VICUNA}, draft of 68M",
    ),
    Technique(
        "prompt lookup, answers from a given text", "prompt-lookup/grounded/vs-plain", "plain decoding",
        "prompt-lookup/vs-transformers", "transformers, prompt_lookup_num_tokens",
        2.4, "Saxena 2023, CNN/DM, Mistral-7B, A100-40GB, batch 1",
    ),
    Technique(
        "prompt lookup, free writing", "prompt-lookup/free/vs-plain", "plain decoding",
        published=1.66, source=f"1.75 tokens per forward pass; {VICUNA}, all tasks",
    ),
    Technique(
        "lookahead, code and lists", "lookahead/code-lists/compression", "plain decoding",
        published=1.34, source=f"1.64 tokens per forward pass; {VICUNA}",
    ),
    Technique(
        "Medusa", "medusa/vs-plain", "plain decoding",
        published=1.71, source=f"2.31 tokens per forward pass; {VICUNA}",
    ),
    Technique(
        "W8A8, compiled", "int8/vs-generate", "transformers generate, eager",
        published=1.47, source=f"W8A16 over bf16; {GPT_FAST}",
    ),
    Technique(
        "W4A16, compiled", "int4/vs-generate", "transformers generate, eager",
        published=1.89, source=f"over bf16; {GPT_FAST}",
    ),
    Technique(
        "LayerSkip", "layerskip/vs-plain", "plain decoding", "layerskip/vs-transformers",
        "transformers, assistant_early_exit", 1.86, "Llama2-7B, CNN/DM, exit 8 of 32, H100",
    ),
    Technique(
        "StreamingLLM, a window of 1,020 tokens", "streaming/vs-recompute", "a window computed anew for every token",
        published=22.2, source="at most; Llama-2, A6000",
    ),
    Technique(
        "everything combined, free writing", "ladder/free/vs-generate", "transformers generate, eager",
        "ladder/plain/vs-llamacpp-best", "llama.cpp, plain; ours without draft tokens, both kinds of prompts",
    ),
    Technique(
        "everything combined, answers from a given text", "ladder/grounded/vs-generate", "transformers generate, eager",
        "ladder/grounded/vs-llamacpp-best", "llama.cpp, the better of plain and its prompt lookup",
        9.6, f"compiled, W4A16, a draft model; {GPT_FAST}",
    ),
)  # fmt: skip


def technique_cells(results: Path) -> list[list[str]]:
    """A row under TECHNIQUES for every technique whose speed was measured. results: the folder of claims.json."""
    claims = {claim.claim: claim for claim in load(results / "claims.json") if claim.measured is not None}
    return [cells(technique, claims, results) for technique in KNOWN if technique.speed in claims]


def cells(technique: Technique, claims: dict[str, Result], results: Path) -> list[str]:
    """The row of one technique. claims: the measured ones, by name."""
    raw_file, claim = results / f"{technique.speed.replace('/', '-')}.json", claims[technique.speed]
    raw = json.loads(raw_file.read_text(encoding="utf-8")) if raw_file.exists() else {}
    kinds = [row["category"] for row in raw.get("questions", []) if "short" not in row]  # too short: not counted
    tau = raw.get("tokens_per_pass")
    tau = mean(tau.values()) if isinstance(tau, dict) else tau  # mean over several kinds of text
    predicted = raw.get("predicted")
    if isinstance(predicted, dict):  # of several settings: the claim is about the one that is predicted to be fastest
        predicted = max(predicted.values())
    return [
        technique.name,
        f"{len(kinds)}: {', '.join(dict.fromkeys(kinds))}" if kinds else "-",
        "-" if tau is None else tables.number(tau),
        times(raw["speed"][0] if "speed" in raw else claim.measured),  # some claims count forward passes instead
        over(technique, claim),
        times(predicted),
        times(claims[technique.peer].measured, technique.peer_name) if technique.peer in claims else "-",
        times(technique.published, technique.source),
    ]


def over(technique: Technique, claim: Result) -> str:
    """What the claim compares with, and the machine if it is not that of most claims."""
    return f"{technique.over}; on {claim.host}" if claim.host else technique.over


def times(value: float | None, name: str = "") -> str:
    """A speedup, with the name of what it is of: "1.25 x (transformers)"; "-" without a value."""
    return "-" if value is None else f"{tables.number(value)} x" + (f" ({name})" if name else "")
