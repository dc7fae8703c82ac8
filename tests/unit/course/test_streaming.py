"""What the StreamingLLM lesson computes from its stored losses."""

import numpy as np

from lessons_lib.course.streaming import recomputed_means, smooth


def test_the_window_computed_anew_is_our_mean_minus_the_difference_on_the_tokens_that_both_have():
    ours = {"mean": [3.0, 2.0], "at": [4.0, 1.0, 2.0, 5.0]}  # blocks of 4 tokens, losses at every second
    assert recomputed_means(ours, {"at": [3.5, 1.0, 2.5, 4.5]}, block=4, every=2).tolist() == [3 - 0.25, 2 - 0.0]
    assert recomputed_means(ours, {"at": [3.5, 1.0, 2.5, 4.5, 9.0]}, 4, 2).tolist() == [2.75, 2.0]
    unfinished = {"mean": [3.0, 2.0], "at": [4.0, 1.0, 2.0]}  # the last block has one loss
    assert recomputed_means(unfinished, {"at": [3.5, 1.0, 2.5]}, 4, 2).tolist() == [2.75, 2.5]


def test_smoothed_means_stand_in_the_middle_of_their_tokens():
    at, values = smooth([1.0, 2.0, 3.0, 4.0, 9.0], block=256)
    assert at.tolist() == [512, 768] and np.allclose(values, [2.5, 4.5])
