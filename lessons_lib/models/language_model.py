"""A loaded language model (every lesson): network and tokenizer together, and the ways to decode with it."""

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.data import text
from lessons_lib.measure.kernels import DTYPES
from lessons_lib.measure.quality import WINDOW, windows
from lessons_lib.measure.shape import ModelShape
from lessons_lib.models.checkpoint import head_is_embedding
from lessons_lib.models.copies import sharing_copy
from lessons_lib.models.device import dtype_name, pick_dtype
from lessons_lib.models.draft import decoder_of, in_eight_bits, scored
from lessons_lib.models.quantized import BOTH, FORMATS, quantized

KINDS = ("decoder", "transformers")
CALIBRATION = 8000  # letters of text, some 2,000 tokens
WEIGHTS = ("fp32", "bf16", "fp16", *FORMATS)


@dataclass(frozen=True, repr=False)
class LanguageModel:
    """A causal language model of transformers with its tokenizer, name, device and dtype."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    device: str
    dtype: torch.dtype

    @property
    def shape(self) -> ModelShape:
        """Layers, width, heads and so on: what bytes and FLOPs are computed from. ValueError if one is missing."""
        shape = ModelShape.from_config(self.network.config, self.name)
        return replace(shape, head_rows=scored(self.network), tied=head_is_embedding(self.network))

    @property
    def weight_bytes(self) -> int:
        """Bytes that the readable decoder's one-row forward reads of each weight: 1 where a draft runs in 8 bits."""
        return 1 if in_eight_bits(self.network) else self.dtype.itemsize

    def in_dtype(self, dtype: str | torch.dtype) -> "LanguageModel":
        """The same model in another number format; itself where it has that format already.

        It is loaded anew by its name, so that no rounding stays; where that cannot be done, as with a cut, what is held
        is converted. ValueError for a format that there is not, or that the device lacks.
        """
        dtype = pick_dtype(dtype, self.device)
        if dtype == self.dtype:
            return self
        from lessons_lib.models.loading import ModelUnavailable, load  # here, because it makes what stands here

        try:
            return load(self.name, self.device, dtype)
        except (ValueError, ModelUnavailable):  # no model of that name, or out of reach
            return replace(self, network=converted(self.network, dtype), dtype=dtype)

    def target(
        self, kind: str = "decoder", weights: str | None = None, compiled: bool = False, context: int | None = None
    ):
        """What `generate` decodes with.

        kind: "decoder" is the readable decoder (Llama family), "transformers" the network's own forward.
        weights: "fp32", "bf16" or "fp16"; None keeps the model's dtype. For the readable decoder also "int8" (weights
        and activations), "int8-weight-only", "int4" and "int4-int8" (weights of 4 bits, activations of 8), beside all
        else in the model's dtype (`models.quantized`). What is loaded is cast; to widen without the rounding already
        done, load again: `in_dtype(...).target()`.
        compiled: the readable decoder through torch.compile, with caches of `context` tokens (default 512).
        ValueError for any other choice, for a dtype that the device lacks, and for a model that the readable decoder
        does not compute.
        """
        _check_choice("kind", kind, KINDS)
        if (compiled or context) and not (compiled and kind == "decoder"):
            raise ValueError("Only the readable decoder is compiled; use target(kind='decoder', compiled=True).")
        rounded = weights in FORMATS
        if rounded and kind != "decoder":
            raise ValueError(f"weights={weights!r} are for the readable decoder; use target(kind='decoder').")
        network = self._with_weights(None if rounded else weights)
        from lessons_lib.decoding import targets  # here, because decoding stands above models

        if kind == "transformers":
            return targets.TransformersTarget(network, self.tokenizer)
        decoder, eos = decoder_of(network, wide=rounded), targets.base.eos_ids(network, self.tokenizer)
        if rounded:
            decoder = quantized(decoder, weights, windows=self._calibration() if weights == BOTH else ())
        if compiled:
            return targets.CompiledTarget(decoder, self.tokenizer, eos, context or 512)
        return targets.DecoderTarget(decoder, self.tokenizer, eos)

    def _calibration(self) -> list[list[int]]:
        """Some text to calibrate with; none without a tokenizer."""
        if self.tokenizer is None:
            return []
        return windows(self.tokenizer(text("calibration")[:CALIBRATION]).input_ids, min(WINDOW, self.shape.context))

    def _with_weights(self, weights: str | None) -> PreTrainedModel:
        if weights is None:
            return self.network
        _check_choice("weights", weights, WEIGHTS)
        pick_dtype(weights, self.device)  # refuses a format that the device lacks
        if DTYPES[weights] == self.dtype:
            return self.network
        return converted(self.network, DTYPES[weights])

    def __repr__(self) -> str:
        size = f"{self.network.num_parameters() / 1e6:.1f}M parameters"
        return f"LanguageModel({self.name}, {size}, {dtype_name(self.dtype)}, {self.device})"


def converted(network: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A copy with its weights in this format, as if it had been loaded in it.

    Integers stay what they are, and the frequencies of rotary positions in single precision: `network.to(dtype)` would
    round them.
    """
    network = copy.deepcopy(network)
    for name, weight in (*network.named_parameters(), *network.named_buffers()):
        if weight.is_floating_point() and not name.endswith("inv_freq"):
            weight.data = weight.data.to(dtype)
    return network


def cut(model: LanguageModel, layers: int = 2) -> LanguageModel:
    """model with its first `layers` layers only, sharing their weights: for what must compile quickly.

    Its text is nonsense, its cost per layer the full model's. ValueError unless 1 <= layers <= L.
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
