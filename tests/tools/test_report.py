"""RESULTS.md: a sentence for every claim, by lesson, and links to claims in other pages."""

import json
import re

import pytest

from lessons_lib.cli.course import NEEDED
from lessons_lib.course.lessons import CLAIMS, find
from lessons_lib.measure.clock import Interval
from lessons_lib.measure.results import load, make_claim, update
from lessons_lib.paths import ROOT
from tools import predictions, readme, report

ROWS = {row.claim: row for row in load(CLAIMS)}


def of(name: str, value: float | None, low=None, high=None):
    """The stored claim with another value and interval."""
    found = value if low is None else Interval(value, low, high)
    return make_claim(name, found, ROWS[name].bar, "the baseline", note="one thing; another")


@pytest.mark.parametrize(
    "row, said",
    [
        (
            of("serving/overhead", 0.0512, 0.04, 0.06),
            "**Scheduling, block tables and sampling add 5.12% to a compiled forward pass of 16 sequences**; "
            "95%: 4% to 6%; bar: at most 8%.",
        ),
        (of("serving/vs-vllm", None), "Not measured: one thing; another; bar: at least 1.0."),
    ],
)
def test_a_claim_is_one_sentence_in_plain_words(row, said):
    assert report.sentence(report.run.CLAIMS[row.claim], row) == said


def test_the_page_has_what_misses_its_bar_first_then_claims_by_lesson_and_what_a_gpu_did(tmp_path):
    named = ("medusa/vs-plain", 1.1), ("cache/512/vs-uncached", 9.0), ("serving/vs-generate-batch", 3.5)
    update(tmp_path / "claims.json", [of(*one) for one in named], host="Machine X")
    gpu = {"serving": {"serving/vs-generate-batch": [9.03, 8.92, 9.82, ""]}}
    gpu |= {"serving on": {"host": {"device": "GPU X"}}, "steps on": {"host": {"device": "GPU X"}}}
    (tmp_path / "gpu.json").write_text(json.dumps(gpu | {"steps": {"bf16": {"eager": 9.7, "graph": 1.7}}}))
    text = report.page(find(), tmp_path)
    places = [text.index(part) for part in ("## What missed its bar", "It follows from", "## [02 ", "9 times")]
    assert places == sorted(places) and "2 of 3 claims reach the bar set before measuring; this page begins" in text
    assert re.findall("<summary>(.*?)</summary>", text) == [name for name, _ in named]
    assert "- Baseline: the baseline\n- one thing\n- another\n" in text
    assert "[raw samples](bench/results/cache-512-vs-uncached.json)" in text
    assert "- on an GPU X: 9.03 times, 8.92 to 9.82" in text and "| bf16 | 9.7 ms | - | 1.7 ms | - |" in text


def test_every_claim_belongs_to_a_lesson():
    names = {lesson.name.partition("_")[2] for lesson in find()}
    assert {name for name in report.run.CLAIMS if report.TOPICS[name.partition("/")[0]] not in names} == set()


def test_stored_results_are_up_to_date_and_have_every_claim():
    text = report.RESULTS.read_text(encoding="utf-8")
    assert text == report.page(find()), "`make bench` or `make lessons` writes it"
    assert sorted(re.findall(r"<summary>(.*?)</summary>", text)) == sorted(ROWS)


def test_every_row_of_choose_rests_on_a_claim_and_its_numbers_are_up_to_date():
    text = readme.CHOOSE.read_text(encoding="utf-8")
    assert report.linked(text, find()) == text, "`make bench` or `make lessons` writes them"
    rows = re.findall(r"^\|(?! your situation|---).*$", text, re.M)
    assert len(rows) > 10 and all(report.LINK.search(row) for row in rows)
    heads = re.findall(r"^## (.*)$", report.RESULTS.read_text(encoding="utf-8"), re.M)
    sections = {report.slug(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", head)) for head in heads}
    assert set(re.findall(r"RESULTS\.md#([\w-]+)", text)) <= sections


def test_the_other_numbers_of_choose_are_those_that_are_stored():
    text = readme.CHOOSE.read_text(encoding="utf-8")
    lookahead, draft, medusa, layerskip = (
        ROWS[name].note
        for name in (
            "lookahead/code-lists/compression",
            "assisted/mixed/vs-plain",
            "medusa/vs-plain",
            "layerskip/quality",
        )
    )
    for number, note, said in (
        ("1.08", lookahead, "speedup 1.08;"), ("0.38", lookahead, "compiled 0.38:"),
        ("1.58", draft, "compiled 1.58"), ("0.79", draft, "compiled 0.79:"), ("0.80", medusa, "compiled 0.80:"),
        ("53.4%", layerskip, "ours 53.4"), ("71.6%", layerskip, "control 71.6"),
    ):  # fmt: skip
        assert number in text and said in note, said
    gpu = json.loads((CLAIMS.parent / "gpu.json").read_text(encoding="utf-8"))
    speed, step, other = gpu["ladder"], gpu["steps"], gpu["steps, another machine of this kind"]
    seven = [speed[f"Llama-2-7B {weights}"]["eager graph"] for weights in ("bf16", "W8A16", "W4A16")]
    assert "Llama-2-7B decodes {:.0f} tokens/s in bf16, {:.0f} in W8A16 and {:.0f} in W4A16".format(*seven) in text
    one = [speed[f"1B {weights}"]["graph"] for weights in ("bf16", "W8A16", "W4A16")]
    assert "decodes {:.0f} tokens/s in bf16, {:.0f} in W8A16 and {:.0f} in W4A16. The".format(*one) in text
    compiled = [step[weights]["graph"] for weights in ("bf16", "W8A16")]
    assert "{:.2f} ms a step in bf16 and {:.2f} ms in W8A16".format(*compiled) in text
    eager = [other[weights]["eager graph"] for weights in ("bf16", "W8A16", "W8A8", "W4A16")]
    assert (
        "{:.2f} ms a step in bf16, {:.2f} ms in W8A16, {:.2f} ms in W8A8 and {:.2f} ms in W4A16".format(*eager) in text
    )
    assert f"Llama-2-7B in bf16 reaches {speed['Llama-2-7B bf16']['graph']:.0f} tokens/s as a compiled" in text


def test_the_page_of_commands_names_the_extras_that_the_commands_ask_for():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", re.search(r"it names the extra that brings them \((.*?)\)", text)[1])
    assert {*named} == {extra for _, extra in NEEDED.values()} | {"serve"}


def test_a_link_to_a_claim_gets_its_value_and_its_section(tmp_path):
    update(tmp_path / "claims.json", [of("medusa/vs-plain", 1.1), of("cache/512/vs-uncached", 9.0)])
    link = lambda text, name: report.linked(f'x [{text}](? "{name}") y', find(), tmp_path)  # noqa: E731
    made = link("?", "cache/512/vs-uncached")
    assert re.fullmatch(r'x \[9 times\]\(../RESULTS.md#02--kv-cache "cache/512/vs-uncached"\) y', made)
    assert "[medusa/vs-plain](../RESULTS.md#what-missed-its-bar " in link("medusa/vs-plain", "medusa/vs-plain")
    with pytest.raises(ValueError, match="no measured claim cache/no"):
        link("?", "cache/no")


def test_links_of_the_documents_lead_to_files():
    pages = [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    found = {page: re.findall(r"\]\((?!https?:)([^)#: ]+)", page.read_text(encoding="utf-8")) for page in pages}
    links = [(page, path) for page, paths in found.items() for path in paths]
    made = {"lessons/scorecard.md", "lessons/results.md"}  # while the site is built
    assert len(links) > 80
    assert [(page.name, path) for page, path in links if path not in made and not (page.parent / path).exists()] == []


def test_plain_names_stand_for_predictions_that_lessons_make():
    said = {one.claim for one in predictions.predictions(find(), CLAIMS.parent)}
    assert set(predictions.PLAINLY.values()) <= said, "a lesson was rewritten: drop its names from PLAINLY"
