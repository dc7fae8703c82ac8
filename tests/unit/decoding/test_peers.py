"""How transformers is asked to do the same."""

from lessons_lib import generate
from lessons_lib.decoding import peers
from lessons_lib.models import tiny


def test_a_static_cache_and_a_compiled_step_are_asked_for_in_transformers_words():
    options = peers.static_and_compiled(64)
    assert (options["cache_implementation"], options["max_cache_len"]) == ("static", 64)
    assert options["compile_config"].mode is None and options["compile_config"]._compile_all_devices


def test_the_text_is_greedy_whatever_repetition_penalty_the_model_comes_with():
    """A penalty below 1 makes transformers repeat the prompt's tokens."""
    network, prompt = tiny(), list(range(10))
    ours = generate(network, prompt, max_new_tokens=20).ids
    network.generation_config.update(repetition_penalty=0.001)
    assert peers.by_transformers(network, prompt, 20) == ours
