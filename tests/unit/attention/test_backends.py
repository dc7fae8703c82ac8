"""Asking for one backend after another: what ran is right, what did not says why."""

import warnings

import pytest
import torch

from lessons_lib.attention import attempts, naive
from lessons_lib.attention.backends import BACKENDS


def attempt_with(backend, *inputs, **options):
    """The outcome of one backend."""
    return {attempt.backend: attempt for attempt in attempts(*inputs, **options)}[backend]


def test_every_backend_either_gives_attention_or_a_reason(heads):
    q, keys, values = heads(2, 2, 4, 6, dtype=torch.float32)
    found = attempts(q[None], keys[None], values[None])
    assert [attempt.backend for attempt in found] == list(BACKENDS)
    for attempt in found:
        assert attempt.ran != bool(attempt.refusal)
        if attempt.ran:
            torch.testing.assert_close(attempt.output[0], naive(q, keys, values))


def test_options_reach_torch(heads):
    q, keys, values = (x[None] for x in heads(1, 1, 4, 4, dtype=torch.float32))
    attempt = attempt_with("MATH", q, keys, values, is_causal=True)
    torch.testing.assert_close(attempt.output[0], naive(q[0], keys[0], values[0], causal=True))


@pytest.mark.filterwarnings("ignore")  # what is ignored elsewhere is heard here
@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_refusal_keeps_its_reason_each_time_and_without_torchs_own_source_lines(heads, turn):
    q, keys, values = (x[None] for x in heads(dtype=torch.float32))
    attempt = attempt_with("FLASH_ATTENTION", q, keys, values, dropout_p=0.5)
    assert not attempt.ran
    assert attempt.refusal == "Both fused kernels do not support non-zero dropout. No available kernel."


def test_of_several_reasons_each_is_kept_once_and_in_order(heads, monkeypatch):
    said = ["Kernel not used because:", "It has been runtime disabled. (Triggered at c.h:550.)"]
    said += ["Expected 16 bits. Got 32.", "No mask, please.", "Expected 16 bits."]

    def refuse(*given, **options):
        for reason in said:
            warnings.warn(reason, UserWarning, stacklevel=2)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    attempt = attempt_with("FLASH_ATTENTION", *heads())
    assert attempt.refusal == "Expected 16 bits. No mask, please. No available kernel."
