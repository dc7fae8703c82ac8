"""Bytes of the classic models in a format, and the GPUs that hold them."""

from dataclasses import replace

import pytest

from lessons_lib.measure.config import CONFIGS
from lessons_lib.quantization.sizes import gpus_that_hold, model_bytes, step_bytes

SMOL = CONFIGS["smollm2-135m"]


@pytest.mark.parametrize("name, published", [("smollm2-135m", 134_515_008), ("llama-2-7b", 6_738_415_616)])
def test_all_parameters_but_the_norms_are_counted(name, published):
    shape = CONFIGS[name]
    norms = (2 * shape.num_layers + 1) * shape.hidden_size
    assert model_bytes(shape, "bf16") == 2 * (published - norms)
    assert model_bytes(shape, "fp32") == 4 * (published - norms)


def test_a_scale_of_each_row_is_counted_row_by_row():
    """By hand for SmolLM2: rows of q, k, v and output, of gate, up and down, with 16 bits for the scale of each."""
    rows, weights = 576 + 2 * 192 + 576 + 2 * 1536 + 576, 2 * 576 * (576 + 192) + 3 * 576 * 1536
    head = 49_152 * 576
    layers = 30 * (weights + 2 * rows)
    assert step_bytes(SMOL, "int8") == pytest.approx(layers + 2 * head, rel=1e-12)
    assert step_bytes(SMOL, "int8", "int8") == pytest.approx(layers + head + 2 * 49_152, rel=1e-12)


def test_a_trimmed_head_is_a_table_of_its_own():
    trimmed = replace(SMOL, head_rows=4096)
    saved = 2 * (SMOL.vocab_size - 4096) * SMOL.hidden_size
    assert step_bytes(trimmed, "bf16") == step_bytes(SMOL, "bf16") - saved
    assert model_bytes(trimmed, "bf16") == model_bytes(SMOL, "bf16") + 2 * 4096 * SMOL.hidden_size


def test_an_embedding_that_is_not_the_head_is_a_table_of_its_own():
    assert model_bytes(SMOL, "int8") == step_bytes(SMOL, "int8") == step_bytes(SMOL, "int8", "bf16")
    llama = CONFIGS["llama-2-7b"]
    assert model_bytes(llama, "int8") == step_bytes(llama, "int8") + 2 * llama.vocab_size * llama.hidden_size


@pytest.mark.parametrize("name, bf16, int8, int4", [
    ("mistral-7b-v0.1", 14.48, 7.51, 4.45), ("llama-2-7b", 13.48, 7.00, 4.17), ("gemma-2b", 5.01, 3.03, 2.16),
    ("opt-1.3b", 2.62, 1.41, 0.89), ("smollm2-135m", 0.269, 0.163, 0.116),
])  # fmt: skip
def test_gigabytes_of_the_classic_models(name, bf16, int8, int4):
    """By hand for Llama: 6.476e9 weights of the layers and 2 tables of 0.131e9."""
    shape = CONFIGS[name]
    found = [model_bytes(shape, format) / 1e9 for format in ("bf16", "int8", "int4 g64")]
    assert found == pytest.approx([bf16, int8, int4], abs=0.006)


def test_a_mistral_fits_8_gb_in_8_bits_and_16_gb_in_16():
    mistral = CONFIGS["mistral-7b-v0.1"]
    assert gpus_that_hold(model_bytes(mistral, "int8"))[0] == "RTX 4060"
    assert gpus_that_hold(model_bytes(mistral, "bf16"))[0] == "T4"
    assert gpus_that_hold(model_bytes(mistral, "bf16") + 2e9)[0] == "L4"
    assert gpus_that_hold(1e12) == []
    assert {"L4", "RTX 4090"} <= set(gpus_that_hold(24e9)) and "T4" in gpus_that_hold(16e9)  # as much as there is, fits
    assert not {"L4", "RTX 4090"} & set(gpus_that_hold(24e9 + 1))
