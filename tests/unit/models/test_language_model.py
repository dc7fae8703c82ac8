"""`LanguageModel`: its targets, rounded weights and cuts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget, as_target
from lessons_lib.models import LanguageModel, ModelUnavailable, cut, hub, load, tiny
from lessons_lib.quantization.linear import QuantizedLinear


@pytest.fixture
def model():
    return LanguageModel(tiny(layers=4), tokenizer=None, name="small", device="cpu", dtype=torch.float64)


def test_its_shape_is_its_configs(model):
    assert (model.shape.name, model.shape.num_layers, model.shape.num_kv_heads) == ("small", 4, 2)


def test_it_shows_itself_in_one_line(model):
    assert repr(model) == f"LanguageModel(small, {model.network.num_parameters() / 1e6:.1f}M parameters, fp64, cpu)"


def test_a_target_is_the_readable_decoder_unless_said_otherwise(model):
    assert type(model.target()) is DecoderTarget
    assert type(model.target(compiled=True, context=64)) is CompiledTarget
    assert type(model.target(kind="transformers")) is TransformersTarget


def test_a_target_has_the_models_weights_and_dtype(model):
    assert model.target(kind="transformers").network is model.network
    target = model.target()
    assert target.dtype == torch.float64
    assert torch.equal(target.decoder.embedding.weight, model.network.model.embed_tokens.weight)


def test_in_another_dtype_it_is_loaded_anew_and_in_its_own_it_is_itself(tiny_package):
    model = load("packaged-tiny", device="cpu", dtype="fp32")
    assert model.in_dtype("fp32") is model and model.in_dtype(torch.float32) is model
    other, again = model.in_dtype("bf16"), load("packaged-tiny", "cpu", "bf16")
    assert (other.name, other.device, other.dtype) == ("packaged-tiny", "cpu", torch.bfloat16)
    assert all(map(torch.equal, other.network.parameters(), again.network.parameters()))
    assert model.network.dtype == torch.float32


@pytest.mark.parametrize("change", [lambda model: cut(model, 2), lambda model: model], ids=["cut", "made by hand"])
def test_in_another_dtype_a_model_that_no_name_loads_is_converted_as_if_it_had_been_loaded_in_it(change):
    model = change(LanguageModel(tiny(layers=4, dtype=torch.float32), None, "small", "cpu", torch.float32))
    other = model.in_dtype("bf16")
    assert (other.name, other.dtype, model.network.dtype) == (model.name, torch.bfloat16, torch.float32)
    for weight, rounded in zip(model.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(rounded, weight.bfloat16())
    for kept, buffer in zip(model.network.buffers(), other.network.buffers(), strict=True):
        assert torch.equal(kept, buffer) and kept.dtype == buffer.dtype  # frequencies of rotary positions


def test_in_another_dtype_a_model_that_is_out_of_reach_is_converted(model, monkeypatch):
    def unreachable(*_):
        raise ModelUnavailable("the hub did not give it")

    monkeypatch.setattr("lessons_lib.models.hub.load", unreachable)
    assert model.in_dtype("fp32").network.dtype == torch.float32
    with pytest.raises(ValueError, match="fp8"):
        model.in_dtype("fp8")


def test_numbers_that_are_no_fractions_stay_what_they_are_in_another_dtype(model):
    model.network.counts = torch.nn.Parameter(torch.tensor([300]), requires_grad=False)
    model.network.register_buffer("scale", torch.tensor([0.1], dtype=torch.float64))
    half = model.target(kind="transformers", weights="bf16").network
    assert half.counts.dtype == torch.int64 and half.scale.dtype == torch.bfloat16


def test_other_weights_are_a_copy_and_the_same_ones_are_not(model):
    assert model.target(weights="bf16").dtype == torch.bfloat16
    assert (half := model.target(kind="transformers", weights="fp16").network).dtype == torch.float16
    assert all(map(torch.equal, half.buffers(), model.network.buffers()))  # frequencies of rotary positions
    assert model.network.dtype == torch.float64
    single = LanguageModel(tiny(dtype=torch.float32), None, "small", "cpu", torch.float32)
    assert single.target(kind="transformers", weights="fp32").network is single.network


@pytest.mark.parametrize("weights", ["W8A8", "W8A16", "W4A16", "W4A8"])
def test_rounded_weights_are_the_decoders_alone_and_the_network_keeps_its_own(model, weights):
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    target = model.target(weights=weights)
    assert type(target) is DecoderTarget and target.dtype == torch.float64
    assert isinstance(target.decoder.layers[0].qkv, QuantizedLinear)
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    assert type(model.target(weights=weights, compiled=True, context=64)) is CompiledTarget


def test_targets_share_the_networks_weights_and_add_next_to_nothing(model):
    """Matrices that are one in the decoder are neighbours in memory, of which the network's own are views."""
    heads, before = model.network.model.layers[0].self_attn, model.network.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    first, again = model.target().decoder, model.target().decoder
    assert all(torch.equal(value, before[name]) for name, value in model.network.state_dict().items())
    memory = [{part.untyped_storage().data_ptr() for part in of.parameters()} for of in (model.network, first, again)]
    assert memory[0] == memory[1] == memory[2]
    assert heads.k_proj.weight.data_ptr() == first.layers[0].qkv.weight[heads.q_proj.out_features].data_ptr()
    heads.k_proj.weight.data[0, 0] += 1
    rows = heads.q_proj.out_features
    assert first.layers[0].qkv.weight[rows, 0] == again.layers[0].qkv.weight[rows, 0] == heads.k_proj.weight[0, 0]


def test_a_network_whose_weights_are_shared_is_stored_as_before(model, tmp_path):
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.target()
    model.network.save_pretrained(tmp_path)
    again = type(model.network).from_pretrained(tmp_path, dtype=torch.float64)
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


def test_int8_is_calibrated_where_windows_are_given_and_not_otherwise(model, monkeypatch):
    seen = []
    monkeypatch.setattr(hub, "quantize_model", lambda decoder, name, windows: seen.append(windows) or decoder)
    letters = replace(model, tokenizer=lambda text: SimpleNamespace(input_ids=[ord(c) % 97 for c in text]))
    letters.target(weights="W8A8"), letters.target(weights="W8A8", windows=letters.calibration_windows())
    assert seen[0] == () and model.calibration_windows() == []
    assert [len(window) for window in seen[1]] == 31 * [256] + [64]  # no longer than the model reads


def test_a_family_that_the_readable_decoder_lacks_decodes_by_transformers():
    opt = LanguageModel(tiny(family="opt"), None, "opt", "cpu", torch.float64)
    assert type(opt.target()) is TransformersTarget and opt.target().network is opt.network
    for choice in ({"kind": "decoder"}, {"compiled": True}, {"weights": "W4A16"}):
        with pytest.raises(ValueError, match="no model type 'opt'"):
            opt.target(**choice)


def test_generate_decodes_a_model_by_the_target_that_the_model_chooses(model):
    assert type(as_target(model)) is type(model.target()) is DecoderTarget
    assert type(as_target(model.network)) is TransformersTarget
    opt = LanguageModel(tiny(family="opt"), None, "opt", "cpu", torch.float64)
    assert type(as_target(opt)) is type(opt.target()) is TransformersTarget


@pytest.mark.parametrize(
    "choice, sentence",
    [
        ({"kind": "vllm"}, "kind='vllm' is not known; choose one of: decoder, transformers"),
        ({"weights": "int3"}, "weights='int3' is not known; choose one of: fp32, bf16, fp16"),
        ({"kind": "transformers", "compiled": True}, "Only the readable decoder is compiled"),
        ({"kind": "transformers", "weights": "W4A16"}, "weights='W4A16' are for the readable decoder; use target"),
        ({"context": 64}, "Only the readable decoder is compiled"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(model, choice, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.target(**choice)


@pytest.mark.parametrize("kind", ["decoder", "transformers"])
def test_weights_in_a_format_that_the_device_lacks_are_refused_with_one_that_it_has(monkeypatch, kind):
    monkeypatch.setattr("lessons_lib.models.device.gpu_bf16", lambda device: False)
    model = LanguageModel(tiny(dtype=torch.float16), None, "small", "cuda", torch.float16)
    with pytest.raises(ValueError, match="dtype 'bf16' is not supported by the device 'cuda'; use 'fp16'"):
        model.target(kind=kind, weights="bf16")
    assert model.target(kind="transformers", weights="fp16").network is model.network


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma", "gpt_neox", "opt"])
@torch.no_grad()
def test_a_cut_has_the_first_layers_and_shares_their_weights(family):
    whole = LanguageModel(tiny(layers=4, family=family), None, "small", "cpu", torch.float64)
    part = cut(whole, layers=2)
    assert (part.name, part.shape.num_layers, whole.shape.num_layers) == ("small[:2]", 2, 4)
    theirs = {p.data_ptr() for p in whole.network.parameters()}
    assert {p.data_ptr() for p in part.network.parameters()} < theirs

    ids, states = torch.arange(9)[None], {}
    stack = next(m for m in whole.network.modules() if isinstance(m, torch.nn.ModuleList))
    stack[2].register_forward_pre_hook(lambda layer, args, kwargs: states.update(x=args[0]), with_kwargs=True)
    whole.network(ids)
    after_two = part.network(ids, output_hidden_states=True).hidden_states
    assert len(after_two) == 3
    cut_input = {}
    norm = last_norm(part.network)
    norm.register_forward_pre_hook(lambda layer, args: cut_input.update(x=args[0]))
    part.network(ids)
    torch.testing.assert_close(cut_input["x"], states["x"])


def last_norm(network):
    named = {name.split(".")[-1]: module for name, module in network.named_modules() if ".layers." not in name}
    return named.get("norm") or named.get("final_layer_norm")


@pytest.mark.parametrize("layers", [0, 5, -1])
def test_a_cut_of_no_layers_or_too_many_is_refused(model, layers):
    with pytest.raises(ValueError, match=f"layers={layers} cannot be cut from small; choose from 1 to 4"):
        cut(model, layers=layers)


def test_a_cut_still_generates_with_a_cache(model):
    ids = torch.arange(5)[None]
    settings = {"max_new_tokens": 12, "do_sample": False}
    network = cut(model, 1).network
    assert torch.equal(network.generate(ids, **settings), network.generate(ids, use_cache=False, **settings))
