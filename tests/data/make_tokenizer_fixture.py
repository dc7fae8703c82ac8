"""Updates tokenizer_fixture.json: llama.cpp's token ids of the texts in it, and its likelihood of one of them.

    python make_tokenizer_fixture.py SmolLM2-135M-Instruct.Q4_1.gguf

Needs llama-cpp-python (0.3.36 made the file), which compiles for some minutes: give it an environment of its own.
The texts are the project's own, but for lines of Shakespeare (public domain); a new one needs only "kind" and "text".
"""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

FIXTURE = Path(__file__).with_name("tokenizer_fixture.json")


def tokenize(llama: llama_cpp.Llama, text: str) -> list[int]:
    return llama.tokenize(text.encode(), add_bos=False, special=True)


def mean_nll(llama: llama_cpp.Llama, ids: list[int]) -> float:
    """Mean negative log-likelihood of ids[1:] in nats."""
    llama.eval(ids)
    logits = np.array(llama.scores[: len(ids) - 1], dtype=np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]]
    return float((np.log(np.exp(logits).sum(-1)) - chosen).mean())


def main(gguf: str) -> None:
    llama = llama_cpp.Llama(gguf, logits_all=True, n_ctx=512, verbose=False)
    made = json.loads(FIXTURE.read_text())
    for row in (made["scored"], *made["rows"]):
        row["ids"] = tokenize(llama, row["text"])
    made["made by"] = f"llama-cpp-python {llama_cpp.__version__} from {Path(gguf).name}"
    made["scored"]["mean_nll"] = round(mean_nll(llama, made["scored"]["ids"]), 4)
    body = ",\n".join(json.dumps(row) for row in made["rows"])
    head = json.dumps(made | {"rows": []}, indent=1)
    FIXTURE.write_text(head.replace('"rows": []', f'"rows": [\n{body}\n]') + "\n")
    print(f"{len(made['rows'])} texts, mean NLL {made['scored']['mean_nll']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
