"""What the StreamingLLM lesson computes from its stored losses."""

import numpy as np

from lessons_lib.course.streaming import smooth


def test_smoothed_means_stand_in_the_middle_of_their_tokens():
    at, values = smooth([1.0, 2.0, 3.0, 4.0, 9.0], block=256)
    assert at.tolist() == [512, 768] and np.allclose(values, [2.5, 4.5])
