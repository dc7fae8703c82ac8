"""How transformers is asked to do the same."""

from lessons_lib.decoding import peers


def test_a_static_cache_and_a_compiled_step_are_asked_for_in_transformers_words():
    options = peers.static_and_compiled(64)
    assert (options["cache_implementation"], options["max_cache_len"]) == ("static", 64)
    assert options["compile_config"].mode is None and options["compile_config"]._compile_all_devices
