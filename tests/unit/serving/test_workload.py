"""Lengths, arrivals, workloads, chats and trace files."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from support.damage import DAMAGES, damaged
from support.examples import examples

from lessons_lib.serving.workload import (
    AtOnce,
    Bursty,
    Conversations,
    Exponential,
    Fixed,
    Listed,
    LogNormal,
    Poisson,
    Uniform,
    Workload,
    read_trace,
    write_trace,
)


def draws(lengths, count=20_000):
    rng = Random(0)
    return [lengths.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("longest, expected", [(32, 15.3), (128, 53.5), (512, 118.4), (1536, 128.0)])
def test_drawing_again_above_the_cap_lowers_the_mean(longest, expected):
    """The means of the continuous-batching study."""
    lengths = Exponential(128, longest, reject=True)
    assert lengths.expected == pytest.approx(expected, abs=0.06)
    assert fmean(draws(lengths)) == pytest.approx(expected, rel=0.03)


def test_a_capped_exponential_piles_up_at_the_cap():
    seen = draws(Exponential(48, 192))
    assert fmean(seen) == pytest.approx(Exponential(48, 192).expected, rel=0.03) and max(seen) == 192
    assert seen.count(192) / len(seen) == pytest.approx(0.0183, abs=0.004)  # e^-4
    assert min(draws(Exponential(0.01, 4))) == 1


def test_other_lengths_are_what_their_names_say():
    assert set(draws(Fixed(7), 10)) == {7}
    assert set(draws(Uniform(2, 4))) == {2, 3, 4}
    assert set(draws(LogNormal(1, 0.2, 9), 100)) == {1, 2}
    assert sorted(draws(LogNormal(100, 1.0, 4000)))[10_000] == pytest.approx(100, rel=0.05)
    assert set(draws(Listed((3, 9)))) == {3, 9}


def test_poisson_and_bursty_arrivals_have_the_same_rate_and_not_the_same_spread():
    poisson, bursty = (a.times(8000, Random(1)) for a in (Poisson(4.0), Bursty(4.0, size=8)))
    assert 8000 / poisson[-1] == pytest.approx(4, rel=0.05) and 8000 / bursty[-1] == pytest.approx(4, rel=0.1)
    assert poisson == sorted(poisson) and len(set(poisson)) == 8000 and len(set(bursty)) == 1000
    assert len(Bursty(4.0, size=8).times(11, Random(1))) == 11
    assert AtOnce().times(3, Random(1)) == [0, 0, 0]


def test_a_seed_makes_the_same_workload_and_a_rate_changes_no_length():
    def lengths(**changes):
        return [(r.prompt_length, r.output_length) for r in Workload(**changes).requests()]

    def times(**changes):
        return [r.arrival for r in Workload(arrivals=Poisson(1.0), **changes).requests()]

    assert lengths() == lengths() == lengths(arrivals=Poisson(2.0)) != lengths(seed=1)
    assert times() == times() != times(seed=1)


def test_ids_come_with_a_vocabulary():
    requests = Workload(count=5, vocab_size=50).requests()
    assert all(len(r.ids) == r.prompt_length and max(r.ids) < 50 for r in requests)
    assert Workload(count=1).requests()[0].ids is None
    assert Workload(count=1, max_tokens=500).requests()[0].max_tokens == 500


def test_each_turn_of_a_chat_repeats_all_before_it():
    chats = Conversations(count=2, turns=3, system=10, pause=5.0, arrivals=Poisson(1.0)).requests()
    first, second, other = chats[0], chats[1], chats[3]
    assert second.ids[: first.prompt_length] == first.ids
    assert second.ids[first.prompt_length :][: first.output_length] == first.reply
    assert second.arrival == first.arrival + 5 and len(first.reply) == first.output_length
    assert other.ids[:10] == first.ids[:10] and other.ids[10:] != first.ids[10:]
    assert [r.id for r in chats] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


@pytest.mark.parametrize("make", [lambda: Workload(5, vocab_size=9), lambda: Conversations(2, 2), lambda: Workload(3)])
def test_a_trace_reads_back_as_it_was_written(tmp_path, make):
    requests = make().requests()
    write_trace(tmp_path / "trace.jsonl", requests)
    names = ("id", "arrival", "prompt_length", "output_length", "max_tokens", "ids", "reply")
    for request, read in zip(requests, read_trace(tmp_path / "trace.jsonl"), strict=True):
        assert all(getattr(request, name) == getattr(read, name) for name in names)


GOOD = '{"prompt_length": 4, "output_length": 2}'


def test_a_trace_needs_little(tmp_path):
    (tmp_path / "t").write_text(GOOD + "\n\n" + '{"ids": [1, 2], "output_length": 2, "arrival": 1.5}')
    first, second = read_trace(tmp_path / "t")
    assert (first.id, second.id, second.arrival, second.prompt_length) == (1, 3, 1.5, 2)


@pytest.mark.parametrize(
    "line, message",
    [
        ("12, 4", "line 2: "),
        ("[1, 2]", "line 2: not a JSON object"),
        ('{"prompt_length": 4}', "line 2: output_length is missing"),
        ('{"output_length": 4}', "line 2: prompt_length is missing"),
        ('{"prompt_length": 4, "output_length": 0}', "line 2: output_length must be a whole number from 1, not 0"),
        ('{"prompt_length": "4", "output_length": 1}', "line 2: prompt_length must be a whole number from 1, not '4'"),
        ('{"prompt_length": 4, "output_length": 1, "arrival": -1}', "line 2: .*arrivals start at 0"),
        ('{"prompt_length": 4, "output_length": 1, "arrival": NaN}', "line 2: arrival must be a finite number"),
        ('{"prompt_length": 4, "output_length": 1, "arrival": 1' + 400 * "0" + "}", "line 2: arrival must be a finite"),
        ('{"prompt_length": 4, "output_length": 9, "reply": [1, 2]}', "line 2: .*a reply of 2 tokens, but 9"),
        ('{"prompt_length": 4, "output_length": 1, "ids": []}', "line 2: ids must be a list"),
        ('{"prompt_length": 4, "output_length": 1, "ids": [1]}', "line 2: .*prompt_length 4, but 1 ids"),
        ('{"prompt_length": 4, "output_length": 1, "slot": 1}', "line 2: 'slot' is not known"),
        ('{"prompt_length": 4, "output_length": 1, "id": 1}', "uses an id twice"),
        ('{"prompt_length": 4, "output_length": 1, "id": [1]}', "line 2: id must be"),
    ],
)
def test_a_malformed_trace_line_is_named(tmp_path, line, message):
    (tmp_path / "t").write_text(GOOD + "\n" + line)
    with pytest.raises(ValueError, match=message):
        read_trace(tmp_path / "t")


def test_a_trace_in_another_encoding_is_refused_by_file_and_line(tmp_path):
    (tmp_path / "t").write_bytes(GOOD.encode() + b"\n" + GOOD.replace("{", '{"id": "é", ').encode("latin-1"))
    with pytest.raises(ValueError, match="t, line 2: not UTF-8") as raised:
        read_trace(tmp_path / "t")
    assert type(raised.value) is ValueError


TRACE = b"".join(b'{"prompt_length": %d, "output_length": 2, "arrival": 0.%d}\n' % (n, n) for n in range(1, 5))


@examples(200)
@given(DAMAGES)
def test_a_damaged_trace_is_read_or_refused_in_a_sentence(tmp_path_factory, damages):
    file = tmp_path_factory.mktemp("damaged") / "t"
    file.write_bytes(damaged(TRACE, damages))
    try:
        requests = read_trace(file)
    except ValueError as error:
        assert type(error) is ValueError and str(error).startswith(str(file))
    else:
        assert all(one.prompt_length >= 1 and one.output_length >= 1 and one.arrival >= 0 for one in requests)


def test_an_empty_trace_is_refused(tmp_path):
    (tmp_path / "t").write_text("\n")
    with pytest.raises(ValueError, match="holds no request"):
        read_trace(tmp_path / "t")


def test_lengths_from_a_file(tmp_path):
    (tmp_path / "lengths").write_text("3\n\n5\n")
    assert Listed.from_file(tmp_path / "lengths").counts == (3, 5)
    (tmp_path / "lengths").write_text("3\n-5\n")
    with pytest.raises(ValueError, match="line 2: '-5' is not a length"):
        Listed.from_file(tmp_path / "lengths")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Poisson(-1), "positive number of requests per second, not -1"),
        (lambda: Poisson(0), "positive"),
        (lambda: Bursty(float("nan")), "positive"),
        (lambda: Bursty(1, size=0), "at least one request"),
        (lambda: Fixed(0), "count must be positive"),
        (lambda: Uniform(5, 4), "from low to high"),
        (lambda: Uniform(0, 4), "low must be positive"),
        (lambda: Exponential(-3, 4), "mean must be positive"),
        (lambda: LogNormal(3, 0, 4), "sigma must be positive"),
        (lambda: Listed(()), "at least one"),
        (lambda: Workload(count=0).requests(), "at least one request"),
    ],
)
def test_impossible_workloads_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
