"""Trained weights in folders: what is written is read, and a card keeps what was on it."""

import json

import pytest
import torch

from lessons_lib.models import ModelUnavailable, trained


def test_tensors_come_back_as_they_were_stored(tmp_path):
    rows = torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3)
    trained.write(tmp_path / "new", {"a": rows.T, "b": torch.ones(2, requires_grad=True)}, steps=3)
    found = trained.read_weights(tmp_path / "new")
    assert torch.equal(found["a"], rows.T) and found["a"].dtype == torch.bfloat16 and not found["b"].requires_grad


def test_a_card_is_updated_entry_by_entry(tmp_path):
    assert trained.read_card(tmp_path) == {}
    trained.write(tmp_path, {"a": torch.ones(1)}, steps=3, loss=2.5)
    trained.write(tmp_path, {"a": torch.ones(1)}, loss=1.5)
    assert trained.read_card(tmp_path) == {"steps": 3, "loss": 1.5}
    assert json.loads((tmp_path / trained.CARD).read_text())["loss"] == 1.5


def test_a_name_is_a_folder_of_the_package_unless_such_a_folder_exists_here(tmp_path, monkeypatch):
    assert trained.folder_of("smol-draft") == trained.OURS / "smol-draft" and trained.read_card("smol-draft")
    assert trained.folder_of(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smol-draft").mkdir()
    assert trained.folder_of("smol-draft").resolve() == tmp_path / "smol-draft"


def test_weights_that_are_missing_are_named_with_what_to_do(tmp_path):
    with pytest.raises(ModelUnavailable, match="weights.safetensors is missing; `python -m lessons_lib.training"):
        trained.read_weights(tmp_path)
