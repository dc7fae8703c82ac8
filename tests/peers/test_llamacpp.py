"""llama.cpp on the packaged file, where the extra is installed: its text is as likely to us as ours, with its
prompt lookup, too, and an earlier prompt leaves no trace. Its other formats decode, repacked, and lose quality."""

import pytest

pytest.importorskip("llama_cpp", reason="the extra is not installed: pip install -e .[llamacpp]")

from lessons_lib.data import text  # noqa: E402
from lessons_lib.decoding.generate import generate  # noqa: E402
from lessons_lib.decoding.llamacpp import FORMATS, LlamaCpp  # noqa: E402
from lessons_lib.decoding.probing import logit_gap, logits_along  # noqa: E402
from lessons_lib.measure import quality  # noqa: E402

PROMPT = "Copy this line twice: the lamp burns all night, the lamp burns all night.\n\nthe lamp"
NEW = 24


@pytest.fixture(scope="module")
def plain() -> LlamaCpp:
    return LlamaCpp("smollm2-135m", context=128)


def test_its_text_is_as_likely_to_the_same_weights_in_float32(smollm2, plain):
    prompt = smollm2.tokenizer(PROMPT).input_ids
    ids, timeline = plain.write(prompt, NEW)
    assert "=" in plain.instructions and len(ids) == len(timeline.times) == NEW and timeline.start < timeline.times[0]
    assert logit_gap(smollm2.target(), prompt, ids).max() < 1  # logits; it rounds inputs to 8 bits


def test_its_text_is_as_likely_to_our_product_of_the_same_kind_and_ours_to_the_same_weights(smollm2, plain):
    """Codes of 4 bits times inputs of 8, both in groups of 32, as it multiplies; its head has no minima."""
    prompt, rounded = smollm2.tokenizer(PROMPT).input_ids, smollm2.target(weights="W4A8")
    assert logit_gap(rounded, prompt, plain.write(prompt, NEW)[0]).max() < 1
    ours = generate(rounded, prompt, max_new_tokens=NEW, min_new_tokens=NEW).ids
    assert logit_gap(smollm2.target(), prompt, ours).max() < 1


def test_its_prompt_lookup_writes_a_text_as_likely_and_forgets_the_last_one(smollm2, plain):
    """The two texts may part where two tokens are nearly even: several rows at once round otherwise than one."""
    prompt = smollm2.tokenizer(PROMPT).input_ids
    looking, (alone, _) = LlamaCpp("smollm2-135m", context=128, lookup=4), plain.write(prompt, NEW)
    found = looking.write(prompt, NEW)[0]
    looking.write(prompt[5:], 8)
    assert looking.write(prompt, NEW)[0] == found and plain.write(prompt, NEW)[0] == alone
    assert found[:8] == alone[:8] and logit_gap(smollm2.target(), prompt, found).max() < 1


def test_a_prompt_is_read_whole_however_much_of_it_was_read_before(smollm2, plain, monkeypatch):
    prompt, read, evaluate = smollm2.tokenizer(PROMPT).input_ids, [], plain.model.eval
    monkeypatch.setattr(plain.model, "eval", lambda ids: read.append(len(ids)) or evaluate(ids))
    for _ in range(2):
        plain.write(prompt, 3)
    assert read == [len(prompt), 1, 1] * 2


@pytest.fixture(scope="module")
def formats() -> dict[str, LlamaCpp]:
    return {weights: LlamaCpp("smollm2-135m", context=256, weights=weights) for weights in FORMATS}


def test_the_packaged_format_keeps_the_perplexity_and_requantized_ones_lose_some(smollm2, formats):
    ids = smollm2.tokenizer(text()[:4096]).input_ids[:512]
    exact = quality.read(lambda of: logits_along(smollm2.target(), of, len(of)), ids, window=256)
    over = {name: quality.ratio(quality.read(of.logits, ids, 256), exact).value for name, of in formats.items()}
    assert over["Q4_1"] == pytest.approx(1, abs=0.01)
    assert 1.01 < over["Q4_K_M"] < over["Q4_0"] < 1.25


def test_requantized_files_decode_what_their_own_logits_prefer(smollm2, formats):
    prompt = smollm2.tokenizer(PROMPT).input_ids
    for name, of in formats.items():
        new, _ = of.write(prompt, NEW)
        said = of.logits([*prompt, *new][:-1])[-NEW:]
        assert (said.max(-1).values - said[range(NEW), new]).max() < 1, name  # several rows round otherwise than one
        assert of.write(prompt, NEW)[0] == new, name  # reading leaves no trace


def test_the_embedding_stays_in_8_bits_and_most_layers_fall_back_in_q4_k_m(formats):
    """Rows of 576 weights are no whole blocks of 256; Q4_K is left where rows have 1,536."""
    parts = {name: of.parts for name, of in formats.items()}
    assert {*parts["Q4_1"]} == {"Q4_1", "Q8_0", "F32"} and {*parts["Q4_0"]} == {"Q4_0", "Q8_0", "F32"}
    assert parts["Q4_1"]["Q8_0"] == parts["Q4_0"]["Q8_0"] < parts["Q4_K_M"]["Q8_0"]
    assert list(parts["Q4_K_M"])[0] == "Q5_0" and parts["Q4_K_M"]["Q4_K"] < parts["Q4_K_M"]["Q5_0"] / 5


def test_q4_0_and_q4_k_run_repacked_and_q4_1_does_not(formats, capsys):
    import llama_cpp

    if "AVX2 = 1" not in formats["Q4_0"].instructions:
        pytest.skip("kernels for repacked weights are known of x86 CPUs with AVX2")
    for name, of in formats.items():
        llama_cpp.Llama(str(of.file), n_ctx=32, verbose=True)
        assert ("CPU_REPACK model buffer size" in capsys.readouterr().err) == (name != "Q4_1"), name
