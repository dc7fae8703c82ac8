"""One row per technique: the claim of its speed beside counted, predicted and published values."""

import json
from pathlib import Path
from statistics import mean

from lessons_lib.measure import tables
from lessons_lib.measure.results import Result, load

TECHNIQUES = (
    "technique", "answers counted", "tokens per pass", "speedup", "over", "predicted", "over its peer", "published",
)  # fmt: skip
GPT_FAST = "gpt-fast, Llama-2-7B, A100-80GB, batch 1"
VICUNA = "Spec-Bench, Vicuna-7B, one A100, batch 1"


def _technique(name: str, claim: str, over: str, peer: str = "", peer_name: str = "", published: float | None = None,
               source: str = "") -> tuple[Result, str, str]:  # fmt: skip
    """(fixed facts, key of the claim of its speed over `over`, key of the claim of its speed over its peer)."""
    return Result("", name, baseline=over, peer_name=peer_name, published=published, source=source), claim, peer


KNOWN = (
    _technique("KV cache, after 512 tokens", "cache/512/vs-uncached", "no cache"),
    _technique(
        "our decoder, compiled", "decoder/bf16/vs-generate", "transformers generate, eager",
        published=4.2, source=GPT_FAST,
    ),
    _technique(
        "continuous batching", "serving/vs-sequential", "one request after another", "serving/vs-generate-batch",
        "transformers' continuous batching", 23, "at most, over static batches of 4; Anyscale, OPT-13B, A100-40GB",
    ),
    _technique(
        "draft model", "assisted/mixed/vs-plain", "plain decoding", "assisted/vs-transformers",
        "transformers, assistant_model", 1.52, f"at 2.28 tokens per forward pass; {VICUNA}, draft of 68M",
    ),
    _technique(
        "prompt lookup, answers from a given text", "prompt-lookup/grounded/vs-plain", "plain decoding",
        "prompt-lookup/vs-transformers", "transformers, prompt_lookup_num_tokens",
        2.4, "Saxena 2023, CNN/DM, Mistral-7B, A100-40GB, batch 1",
    ),
    _technique(
        "prompt lookup, free writing", "prompt-lookup/free/vs-plain", "plain decoding",
        published=1.66, source=f"1.75 tokens per forward pass; {VICUNA}, all tasks",
    ),
    _technique(
        "lookahead, code and lists", "lookahead/code-lists/compression", "plain decoding",
        published=1.34, source=f"1.64 tokens per forward pass; {VICUNA}",
    ),
    _technique(
        "Medusa", "medusa/vs-plain", "plain decoding",
        published=1.71, source=f"2.31 tokens per forward pass; {VICUNA}",
    ),
    _technique(
        "W8A8, compiled", "int8/vs-generate", "transformers generate, eager",
        published=1.47, source=f"W8A16 over bf16; {GPT_FAST}",
    ),
    _technique(
        "W4A16, compiled", "int4/vs-generate", "transformers generate, eager",
        published=1.89, source=f"over bf16; {GPT_FAST}",
    ),
    _technique(
        "LayerSkip", "layerskip/vs-plain", "plain decoding", "layerskip/vs-transformers",
        "transformers, assistant_early_exit", 1.86, "Llama2-7B, CNN/DM, exit 8 of 32, H100",
    ),
    _technique(
        "StreamingLLM, a window of 1,020 tokens", "streaming/vs-recompute", "a window computed anew for every token",
        published=22.2, source="at most; Llama-2, A6000",
    ),
    _technique(
        "everything combined, free writing", "ladder/free/vs-generate", "transformers generate, eager",
        "ladder/plain/vs-llamacpp-best", "llama.cpp, plain; ours without draft tokens, both kinds of prompts",
    ),
    _technique(
        "everything combined, answers from a given text", "ladder/grounded/vs-generate", "transformers generate, eager",
        "ladder/grounded/vs-llamacpp-best", "llama.cpp, the better of plain and its prompt lookup",
        9.6, f"compiled, W4A16, a draft model; {GPT_FAST}",
    ),
)  # fmt: skip


def technique_cells(results: Path) -> list[list[str]]:
    """A row under TECHNIQUES for every technique whose speed was measured. results: the folder of claims.json."""
    known = {claim.claim: claim for claim in load(results / "claims.json") if claim.measured is not None}
    return [_technique_row(*of, known, results) for of in KNOWN if of[1] in known]


def _times(value: float | None, name: str = "") -> str:
    return "-" if value is None else f"{tables.number(value)} x" + (f" ({name})" if name else "")


def _technique_row(of: Result, speed: str, peer: str, known: dict[str, Result], results: Path) -> list[str]:
    raw_file, claim = results / f"{speed.replace('/', '-')}.json", known[speed]
    raw = json.loads(raw_file.read_text(encoding="utf-8")) if raw_file.exists() else {}
    kinds = [row["category"] for row in raw.get("questions", []) if "short" not in row]  # too short: not counted
    tau = raw.get("tokens_per_pass")
    tau = mean(tau.values()) if isinstance(tau, dict) else tau  # mean over several kinds of text
    predicted = raw.get("predicted")
    if isinstance(predicted, dict):  # of several settings: the claim is about the one that is predicted to be fastest
        predicted = max(predicted.values())
    return [
        of.claim,
        f"{len(kinds)}: {', '.join(dict.fromkeys(kinds))}" if kinds else "-",
        "-" if tau is None else tables.number(tau),
        _times(raw["speed"][0] if "speed" in raw else claim.measured),  # some claims count forward passes instead
        "; ".join(filter(None, [of.baseline, claim.host and f"on {claim.host}"])),
        _times(predicted),
        _times(known[peer].measured, of.peer_name) if peer in known else "-",
        _times(of.published, of.source),
    ]
