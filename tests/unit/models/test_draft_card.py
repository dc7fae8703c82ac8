"""The card of a draft: read where there is one, and set as tables."""

import json

from lessons_lib.models import hub
from lessons_lib.models.draft_card import before_and_after, card_of, designs

VALUE = {"texts": 3, "tokens_per_forward": 1.25, "right": 0.2}


def worth(macro):
    return {"gamma": 4, "macro": macro, "kinds": {"chat": VALUE, "code": VALUE | {"right": 0.5}}, "by_gamma": {"4": 1}}


def test_a_card_is_read_by_name_and_only_drafts_have_one(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "OURS", tmp_path)
    assert card_of("smol-draft") == {}  # not trained yet
    (tmp_path / "smol-draft").mkdir()
    (tmp_path / "smol-draft" / "draft.json").write_text(json.dumps({"layers": 3}))
    assert card_of("smol-draft") == {"layers": 3}
    assert card_of("smollm2-135m") == {} and card_of(str(tmp_path / "smol-draft")) == {}


def test_before_and_after_stand_in_one_table():
    headings, rows = before_and_after({"before": worth(1.1), "after": worth(2.2)})
    assert headings == ["held out, gamma 4", "chat", "code", "mean of the kinds"]
    assert rows[0] == ["before", "1.25 (20% right)", "1.25 (50% right)", "1.10"] and rows[1][-1] == "2.20"
    assert before_and_after({"after": worth(2.2)}) is None


def test_designs_are_listed_with_their_size():
    card = {"designs": [{"name": "three layers", "parameters": 10_616_832, "steps": 600, "macro": 2.104}]}
    assert designs(card)[1] == [["three layers", "10,616,832", "600", "2.10"]]
    assert designs({}) is None
