"""Checkpoints of tiny models with a tokenizer, and the installed command `lessons`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.kinds import sharpened
from support.small_tokenizers import byte_level
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, BertForMaskedLM, T5Config
from transformers import T5ForConditionalGeneration as T5

from lessons_lib.models import tiny
from lessons_lib.paths import ROOT


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> Path:
    """A folder with tiny checkpoints: llama, which the readable decoder computes; gpt2; mamba, without
    attention; t5 and bert, not causal."""
    base, tokenizer = tmp_path_factory.mktemp("checkpoints"), byte_level()
    words = {"vocab_size": len(tokenizer)}
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 1600, "bos_token_id": None, "eos_token_id": None}
    state = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "eos_token_id": None}
    t5 = T5Config(**words, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    bert = BertConfig(**words, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {
            "llama": tiny(dtype=torch.float32, width=64, context=2048, **words),
            "gpt2": AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes, **words)),
            "mamba": sharpened(AutoConfig.for_model("mamba", **state, **words)),
            "t5": T5(t5),
            "bert": BertForMaskedLM(bert),
        }
        for weight in made["gpt2"].parameters():
            weight.data.normal_(0, 0.5)  # else every token is the same
    for name, network in made.items():
        network.save_pretrained(base / name)
        tokenizer.save_pretrained(base / name)
    return base


@pytest.fixture
def lessons(tmp_path):
    """lessons(*words, **settings) -> the finished process of the installed command, in an empty folder.

    settings: of the environment.
    """
    command = Path(sys.executable).with_name("lessons.exe" if sys.platform == "win32" else "lessons")
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}

    def run(*words, **settings) -> subprocess.CompletedProcess:
        call = [str(command), *map(str, words)]
        options = dict(capture_output=True, text=True, timeout=300)
        return subprocess.run(call, cwd=tmp_path, env=os.environ | quiet | settings, **options)

    return run
