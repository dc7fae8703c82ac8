"""Inputs of attention: which tiles the causal rule masks, and which shapes fit together."""

import pytest
import torch

from lessons_lib.attention.heads import Sight, check, spans


def test_a_tile_is_masked_only_where_the_diagonal_crosses_it():
    sight = Sight(4, 6, causal=True)  # query t sees keys 0 to t + 2
    assert sight.tile(range(0, 2), range(0, 3)) is None
    assert sight.tile(range(0, 2), range(2, 4)).tolist() == [[True, False], [True, True]]
    assert [sight.reaches(rows) for rows in spans(4, 3)] == [5, 6]
    assert [list(span) for span in spans(5, 2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("shapes, message", [
    (((4, 5, 8), (3, 5, 8), (3, 5, 8)), "4 query heads cannot share 3 KV heads"),
    (((1, 4, 5, 8), (1, 4, 5, 8), (1, 4, 5, 8)), "without a batch"),
    (((2, 5, 8), (2, 5, 7), (2, 5, 7)), "one dim"),
    (((2, 5, 8), (2, 5, 8), (2, 6, 8)), "heads and tokens"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        check(*map(torch.zeros, shapes))


def test_two_dtypes_or_devices_are_refused(heads):
    q, keys, values = heads()
    for given_ in ((q.float(), keys, values), (q, keys, values.float()), (q.long(), keys.long(), values.long())):
        with pytest.raises(ValueError, match="one floating dtype"):
            check(*given_)
    for which in range(3):
        given_ = heads()
        given_[which] = given_[which].to("meta")
        with pytest.raises(ValueError, match="one device, not .*meta"):
            check(*given_)
