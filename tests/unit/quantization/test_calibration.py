"""Calibration sees what each matrix reads, without the first token of a window."""

import pytest
import torch
from support.rounded import WINDOWS, decoder, logits

from lessons_lib.quantization.calibration import HEAD, MATRICES, inputs_of, linears, watch


@torch.no_grad()
def test_inputs_are_what_each_matrix_reads_without_first_tokens():
    whole, seen = decoder(), {}
    watch(whole, WINDOWS, lambda place, x: seen.setdefault(place, []).append(x[1:]))
    inputs = inputs_of(whole, WINDOWS)
    assert set(inputs) == set(linears(whole)) == {(i, n) for i in (0, 1) for n in MATRICES} | {(2, HEAD)}
    for place, found in inputs.items():
        rows = torch.cat(seen[place])
        torch.testing.assert_close(found.largest, rows.abs().amax(0))
        assert found.sample.shape[1] == rows.shape[1] and all((rows == row).all(1).any() for row in found.sample[::50])
    final = torch.cat([logits(whole, ids) for ids in WINDOWS])
    rows = torch.cat(seen[2, HEAD])
    torch.testing.assert_close(final[1:40], rows[:39] @ whole.head.weight.T)


def test_windows_of_one_token_say_nothing_and_are_left_out():
    found, expected = inputs_of(decoder(), [*WINDOWS, [8]]), inputs_of(decoder(), WINDOWS)
    for place, inputs in expected.items():
        assert torch.equal(found[place].largest, inputs.largest) and torch.equal(found[place].sample, inputs.sample)
    with pytest.raises(ValueError, match="nothing to calibrate with; pass windows"):
        inputs_of(decoder(), [[8]])
