"""The engine's peers: the same tokens as our engine from transformers' two ways to batch, with a time for each."""

import pytest
import torch

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.models import tiny
from lessons_lib.serving import peers
from lessons_lib.serving.metrics import latency

NETWORK = tiny().to(torch.float32)
PAGES = {"page_size": 32, "num_blocks": 32, "max_batch_tokens": 64}
PROMPTS, LENGTHS = [[7, 7, 3, 9], [5, 80, 3, 3, 61, 2], [1], [9, 4]], [5, 2, 7, 1]


in_both_ways = pytest.mark.parametrize("serve", [
    lambda requests: peers.padded_batches(NETWORK, requests, 3),
    lambda requests: peers.continuous_batches(NETWORK, requests, PAGES),
], ids=["padded", "continuous"])  # fmt: skip


def made():
    return [
        Sequence(i, ids=list(ids), output_length=n) for i, (ids, n) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


def alone(ids, count):
    return generate(NETWORK, ids, max_new_tokens=count, min_new_tokens=count).ids


@in_both_ways
def test_each_request_gets_its_own_tokens_and_a_time_for_each(serve):
    asked = made()
    served = serve(asked)
    assert [r.ids[len(p) :] for r, p in zip(served, PROMPTS, strict=True)] == list(map(alone, PROMPTS, LENGTHS))
    assert [len(request.times) for request in served] == LENGTHS
    assert all(list(r.times) == sorted(r.times) and 0 <= r.admitted <= r.times[0] for r in served)
    assert all(r.finished >= r.times[-1] for r in served)
    assert latency(served).failed == 0 and latency(served).requests == 4
    assert [r.ids for r in asked] == PROMPTS  # the workload can be served again


@in_both_ways
def test_a_request_that_arrives_later_is_refused(serve):
    with pytest.raises(ValueError, match="serve all requests at once; let every request arrive at 0 s"):
        serve([*made(), Sequence(4, 5.0, ids=[1, 2], output_length=2)])


def test_a_padded_batch_ends_together_and_the_next_begins_after_it():
    first, second, third, last = peers.padded_batches(NETWORK, made(), 3)
    assert first.finished == second.finished == third.finished == third.times[-1]
    assert last.admitted >= third.finished and first.times == third.times[:5]


@in_both_ways
def test_a_limit_below_the_length_ends_an_answer(serve):
    served = serve([Sequence(0, ids=[7, 7, 3], output_length=9, max_tokens=2), Sequence(1, ids=[1], output_length=4)])
    assert [len(request.times) for request in served] == [2, 4] and not any(request.error for request in served)
    assert served[0].ids[3:] == alone([7, 7, 3], 2)


def test_what_transformers_does_not_answer_is_an_error_and_no_hang():
    small = PAGES | {"num_blocks": 2}
    served = peers.continuous_batches(NETWORK, [Sequence(0, ids=[5] * 200, output_length=3)], small)
    assert served[0].error and latency(served + peers.padded_batches(NETWORK, made(), 4)).failed == 1
