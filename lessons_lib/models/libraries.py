"""The same model quantized by other libraries (lesson 10): torchao and bitsandbytes, through transformers.

Both leave the LM head and the embedding as they are. The 8-bit format of bitsandbytes casts activations to fp16.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel, TorchAoConfig

from lessons_lib.models.hub import quiet
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.progress import first_line
from lessons_lib.quantization.linear import storage_bytes


def _torchao(name: str) -> TorchAoConfig:
    import torchao.quantization as ao

    return TorchAoConfig(quant_type=getattr(ao, name)())


LIBRARIES: dict[str, Callable[[torch.dtype], TorchAoConfig | BitsAndBytesConfig]] = {
    "torchao int8": lambda dtype: _torchao("Int8WeightOnlyConfig"),
    "torchao int8 dynamic": lambda dtype: _torchao("Int8DynamicActivationInt8WeightConfig"),
    "bitsandbytes int8": lambda dtype: BitsAndBytesConfig(load_in_8bit=True),
    "bitsandbytes nf4": lambda dtype: BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    ),
}


def by_library(name: str, dtype: torch.dtype, checkpoint: str | Path, device: str = "cpu") -> PreTrainedModel:
    """Load a checkpoint through transformers and quantize it by a library.

    name: one of LIBRARIES. checkpoint: its folder, such as `network.name_or_path`. Raises ModelUnavailable if the
    library is missing or does not support this format here.
    """
    if name not in LIBRARIES:
        raise ValueError(f"there is no {name!r}; choose one of {', '.join(LIBRARIES)}")
    library = name.split()[0]
    if importlib.util.find_spec(library) is None:
        raise ModelUnavailable(f"{name} needs {library}, which is missing; install lessons_lib[quantization]")
    try:
        with quiet(bars=False):
            config = LIBRARIES[name](dtype)
            options = dict(dtype=dtype, quantization_config=config, device_map={"": device})
            made = AutoModelForCausalLM.from_pretrained(checkpoint, **options)
    except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
        why = first_line(error)
        raise ModelUnavailable(f"{name} does not run here ({why}); choose another of {library}'s formats") from error
    return made.eval()


def bytes_held(network: torch.nn.Module) -> int:
    """Bytes of all weights, including codes and scales that a library hides inside a weight.

    Call it before the first forward pass: then bitsandbytes moves its 8-bit scales to a place that is not searched
    here.
    """
    return storage_bytes(part for x in (*network.parameters(), *network.buffers()) for part in _parts(x))


def _parts(x: Any) -> Iterator[Tensor]:
    """The plain tensors of a weight: torchao composes it from several, bitsandbytes attaches them as attributes."""
    if hasattr(x, "__tensor_flatten__"):
        for name in x.__tensor_flatten__()[0]:
            yield from _parts(getattr(x, name))
        return
    if isinstance(x, Tensor):
        yield x
    for inner in getattr(x, "__dict__", {}).values():
        if isinstance(inner, Tensor) or type(inner).__name__ == "QuantState":
            yield from _parts(inner)
