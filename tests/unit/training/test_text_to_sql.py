"""The task: the same examples every time, no table in two splits, and SQL that a database accepts."""

import random
import re
import sqlite3
from collections import Counter

import pytest

from lessons_lib.models import load
from lessons_lib.training.text_to_sql import FAMILIES, SIZES, THEMES, VALUES, Example, encode, split_of, text_to_sql


@pytest.fixture(scope="module")
def some() -> dict:
    return {split: text_to_sql(1_000, split) for split in SIZES}


def tables_of(example: Example) -> set[tuple[str, frozenset[str]]]:
    """Name and columns of every table, also of the second one of a join."""
    found = re.findall(r"CREATE TABLE (\w+) \((.*)\);", example.schema)
    return {(name, frozenset(column.split()[0] for column in columns.split(", "))) for name, columns in found}


def test_the_word_lists_are_as_long_as_said_and_name_nothing_twice():
    tables = [name for names, *_ in THEMES for name in names.split()]
    columns = [c.partition(":")[0] for _, *kinds in THEMES for part in kinds for c in part.split()]
    values = [value for several in VALUES.values() for value in several]
    assert [len(set(words)) for words in (tables, columns, values)] == [60, 120, 200]
    assert [len(words) for words in (tables, columns, values)] == [60, 120, 200] and len(FAMILIES) >= 12


def test_examples_depend_on_split_and_form_alone(some):
    state = random.getstate()
    assert text_to_sql(50, "train") == some["train"][:50]
    assert random.getstate() == state
    first = [text_to_sql(1, split, hard)[0].prompt for split in SIZES for hard in (False, True)]
    assert len(set(first)) == len(first)
    assert some["train"][0].sql == "SELECT daily_visitors, located_city FROM hospitals WHERE ticket_price > 71.0"


def test_no_table_with_the_same_columns_is_in_two_splits(some):
    tables = {split: set().union(*map(tables_of, examples)) for split, examples in some.items()}
    assert not tables["train"] & tables["test"] and not tables["train"] & tables["validation"]
    assert not tables["test"] & tables["validation"]
    for split in SIZES:
        assert all(split_of(*table) == split for table in tables[split])
    assert {name for name, _ in tables["train"]} == {name for name, _ in tables["test"]}


def test_the_split_of_a_table_does_not_depend_on_the_order_of_its_columns():
    columns = ["page_count", "box_office", "main_genre", "critic_score"]
    assert len({split_of("movies", random.sample(columns, 4)) for _ in range(20)}) == 1


def test_every_example_differs_and_all_families_come_up(some):
    for examples in some.values():
        assert len({example.prompt for example in examples}) == len(examples)
        counts = Counter(example.family for example in examples)
        assert set(counts) == set(FAMILIES) and min(counts.values()) > 20


@pytest.mark.parametrize("hard", [False, True])
def test_a_database_accepts_every_answer(hard):
    for example in text_to_sql(1_500, "test", hard=hard):
        database = sqlite3.connect(":memory:")
        database.executescript(example.schema)
        database.execute(example.sql)
        database.close()


def test_the_answer_is_in_the_question_and_in_the_schema(some):
    """Every quoted value and number of the SQL is in the question, every column in the schema: it can be answered."""
    for example in some["test"]:
        for value in re.findall(r"'([^']*)'", example.sql):
            assert value in example.question
        bare = re.sub(r"'[^']*'", "", example.sql)
        for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", bare):
            assert number in example.question
        for name in re.findall(r"[a-z_]{2,}", bare):
            assert name in example.schema and name.replace("_", " ") in example.question


def test_tables_have_three_to_six_columns(some):
    sizes = Counter(len(columns) for examples in some.values() for e in examples for _, columns in tables_of(e))
    assert set(sizes) == {3, 4, 5, 6}


def test_hard_values_are_random_strings():
    examples = [e for e in text_to_sql(300, hard=True) if "'" in e.sql]
    quoted = [value for e in examples for value in re.findall(r"'([^']*)'", e.sql)]
    assert len(set(quoted)) == len(quoted) > 100
    assert all(re.fullmatch(r"[a-z0-9]{6,10}", value) for value in quoted)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="choose one of: train, validation, test"):
        text_to_sql(1, "dev")


def test_ids_are_prompt_then_sql_then_the_end_token(some):
    tokenizer = load("smollm2-135m", device="cpu").tokenizer
    lengths = []
    for example, text in zip(some["test"], encode(tokenizer, some["test"]), strict=True):
        answer = text.ids[text.prompt_length :]
        assert tokenizer.decode(text.ids[: text.prompt_length]) == example.prompt
        assert answer[-1] == tokenizer.eos_token_id and tokenizer.decode(answer[:-1]).strip() == example.sql
        lengths.append(len(answer) - 1)
    assert 15 <= min(lengths) and max(lengths) <= 45
