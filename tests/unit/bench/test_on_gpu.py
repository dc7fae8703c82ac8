"""What is measured of a GPU, in miniature on a CPU: all parts, what is stored when, and the time limits."""

import json
import sys
import time
from dataclasses import replace

import pytest
import torch
from support.graphs import graphs_on_cpu

from bench import on_gpu, serving
from lessons_lib.course import runner
from lessons_lib.measure import tables
from lessons_lib.quantization import bytes_read
from tools import report


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """In miniature on a CPU, CUDA graphs stood in for, compiled steps left as they are."""
    monkeypatch.setattr(on_gpu, "bandwidth", lambda device: 1e10)
    monkeypatch.setenv("LESSONS_LIB_QUICK", "1")
    on_gpu.random_decoder.cache_clear()
    with graphs_on_cpu(problem=None, compiles=False):
        yield on_gpu.Setup("cpu", tmp_path / "gpu.json", tiny=True, graphs=True)


def stored(setup) -> dict:
    return json.loads(setup.results.read_text())


def test_steps_are_eager_captured_and_compiled_in_each_format(setup):
    on_gpu.measure("steps", setup)
    rows = stored(setup)["steps"]
    assert list(rows) == ["bf16", "W8A16", "W4A16", "W8A8"]
    for row in rows.values():
        assert set(row) == {"eager", "eager graph", "limit", "compiled", "graph"} and min(row.values()) > 0
    assert rows["W8A8"]["limit"] < rows["bf16"]["limit"]


def test_the_ladder_has_both_sizes_in_three_formats_with_their_share_of_the_bandwidth(setup):
    on_gpu.measure("ladder", setup)
    rows = stored(setup)["ladder"]
    assert list(rows) == [f"{size} {name}" for size in ("1B", "Llama-2-7B") for name in ("bf16", "W8A16", "W4A16")]
    row, decoder = rows["Llama-2-7B bf16"], on_gpu.random_decoder(setup, on_gpu.LARGE["Llama-2-7B"], None)
    assert row["graph share"] == pytest.approx(row["graph"] * bytes_read(decoder) / 1e10)
    assert set(row) == {"eager graph", "eager graph share", "eager", "graph", "graph share"}


def test_attention_is_timed_by_length_where_a_backend_runs(setup, capsys):
    on_gpu.measure("attention", setup)
    rows = stored(setup)["attention"]
    ways = {name for name in rows["64"] if not name.endswith(" MB")}
    assert list(rows) == ["64", "128"] and {"naive", "MATH"} <= ways <= {"naive", *on_gpu.BACKENDS}
    assert set(rows["64"]) == ways | {f"{way} MB" for way in ways} and min(rows["64"].values()) > 0
    output = 2 * 128 * 16 * 4  # then two matrices and a mask
    assert rows["128"]["naive MB"] == pytest.approx((output + (2 * 2 * 4 + 1) * 128**2) / 1e6)


def test_naive_attention_is_causal_and_equals_torchs():
    q, keys, values = torch.randn(3, 2, 9, 4, dtype=torch.float64)
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)
    torch.testing.assert_close(on_gpu.naive(q, keys, values), expected)


def test_the_engines_claims_run_on_random_weights_once_and_the_page_of_results_reads_them(setup, monkeypatch):
    name = "serving/vs-sequential"
    monkeypatch.setattr("lessons_lib.serving.paged_target.compiler_problem", lambda device: "left uncompiled")
    monkeypatch.setattr(serving, "model", serving.model)  # put back afterwards
    monkeypatch.setattr(on_gpu, "CLAIMED", (name,))
    monkeypatch.setattr(serving, "SLOTS", 2)  # as many requests
    serving.target.cache_clear()
    on_gpu.measure("serving", setup)
    serving.target.cache_clear()
    value, low, high, note = stored(setup)["serving"][name]
    assert low <= value <= high and "tokens/s" in note
    (said,) = report.gpu_fact(name, stored(setup))
    assert f": {tables.number(value)} times, " in said
    monkeypatch.setattr(on_gpu, "claimed", lambda *_: pytest.fail("measured it again"))
    on_gpu.measure("serving", setup)


def test_lessons_run_with_short_parameters_of_their_own(setup, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    monkeypatch.setattr(
        runner, "execute", lambda lesson, values, build: given.append(values) or runner.Result(lesson, 2.0, "cell [3]")
    )
    on_gpu.measure("lessons", setup)
    assert list(stored(setup)["lessons"].values()) == [{"seconds": 2.0, "failure": "cell [3]"}]
    assert given[0]["device"] == "cpu" and given[0]["repeats"] == 1


def test_commands_run_as_a_user_types_them_and_a_failure_is_its_last_line(setup):
    on_gpu.measure("commands", setup)
    row = stored(setup)["commands"]["generate"]
    assert row["failure"] == "" and row["seconds"] > 0
    _, failure = on_gpu.command_time(("generate", "Hi", "--model", "no/such folder"), setup)
    assert "no/such folder" in failure


@pytest.fixture
def tasks(setup, monkeypatch):
    """A part of three tasks, of which the second fails; the rows that were measured."""
    done = []

    def fails():
        raise RuntimeError("no kernel")

    def made(setup):
        yield on_gpu.Task("one", ["a"], lambda: done.append("one a") or [1.0])
        yield on_gpu.Task("two", ["a"], fails)
        yield on_gpu.Task("one", ["b"], lambda: done.append("one b") or [2.0])

    monkeypatch.setitem(on_gpu.PARTS, "steps", (9, made))
    return done


def test_every_number_is_stored_at_once_and_a_task_that_fails_says_why(setup, tasks, monkeypatch, capsys):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "0")
    states, write = [], on_gpu.write
    monkeypatch.setattr(
        on_gpu, "write", lambda path, found: states.append(json.dumps(found["steps"])) or write(path, found)
    )
    on_gpu.write(setup.results, {"steps": {}, "attention": 3})
    on_gpu.measure("steps", setup)
    assert states[1:] == ['{"one": {"a": 1.0}}', '{"one": {"a": 1.0, "b": 2.0}}']
    assert stored(setup)["attention"] == 3 and not setup.results.with_suffix(".part").exists()
    assert "steps, two: RuntimeError: no kernel" in capsys.readouterr().err


def test_a_run_goes_on_where_it_stopped_and_starts_anew_with_other_versions(setup, tasks, monkeypatch):
    on_gpu.measure("steps", setup)
    found = stored(setup)
    del found["steps"]["one"]["b"]
    on_gpu.write(setup.results, found)
    on_gpu.measure("steps", setup)
    assert tasks == ["one a", "one b", "one b"]
    monkeypatch.setattr(on_gpu.machine, "versions", lambda: {"torch": "another"})
    on_gpu.measure("steps", setup)
    assert tasks[3:] == ["one a", "one b"] and stored(setup)["steps on"]["versions"] == {"torch": "another"}


def test_numbers_of_another_machine_or_in_miniature_are_neither_replaced_nor_taken_over(setup, tasks, capsys):
    of_another = {"steps": {"one": {"a": 5.0}}, "steps on": {"host": {"device": "GPU X"}, "versions": {}}}
    on_gpu.write(setup.results, of_another)
    assert on_gpu.main(["steps", "--here", "--device", "cpu", "--results", str(setup.results)]) == 1
    assert "of another machine or size; choose another file with --results" in capsys.readouterr().err
    assert stored(setup) == of_another and tasks == []
    small = replace(setup, results=setup.results.with_name("small.json"))
    on_gpu.measure("steps", small)
    with pytest.raises(ValueError, match="small.json holds steps of another machine or size"):
        on_gpu.measure("steps", replace(small, tiny=False))


def test_a_trial_in_miniature_leaves_the_stored_numbers_alone(setup, tasks, monkeypatch, tmp_path):
    monkeypatch.setattr(on_gpu, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(on_gpu, "OTHERS", tmp_path / "others")
    assert on_gpu.main(["steps", "--here", "--device", "cpu", "--tiny"]) == 0
    assert [path.name for path in tmp_path.glob("*/*")] == ["gpu-tiny.json"] and tasks == ["one a", "one b"]


def test_a_part_is_stopped_at_its_limit_with_what_it_started(tmp_path):
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[2]]); time.sleep(60)"
    beats = tmp_path / "beats"
    child = f"import time\nwhile True: print(file=open({str(beats)!r}, 'a')); time.sleep(0.01)"
    said = on_gpu.run_limited([sys.executable, "-c", script, "part", child], 3.0)
    assert said == "part: stopped after 3 s; what it had measured is stored"
    time.sleep(0.2)
    written = beats.stat().st_size
    time.sleep(0.5)
    assert beats.stat().st_size == written > 0


def test_a_part_that_ends_badly_says_so():
    ends = [sys.executable, "-c", "raise SystemExit(3)", "part"]
    assert on_gpu.run_limited(ends, 60.0) == "part: ended with status 3"


def test_without_a_gpu_nothing_is_measured_and_an_unknown_part_is_named(monkeypatch, capsys):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_gpu.main([]) == 1 and "there is none here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        on_gpu.main(["stairs"])
    assert "stairs: no part" in capsys.readouterr().err


def test_random_weights_have_the_models_sizes_and_dtype():
    config = on_gpu.Setup(tiny=True).sized(on_gpu.DEFAULT)
    decoder = on_gpu.random_decoder(on_gpu.Setup("cpu"), config, None)
    assert decoder.head.weight is decoder.embedding.weight and decoder.embedding.weight.dtype == torch.bfloat16
    norms = (2 * config.num_layers + 1) * config.hidden_size
    assert sum(weight.numel() for weight in decoder.parameters()) == config.weights + norms
    assert decoder.cos.dtype == torch.bfloat16 and decoder.norm.eq(1).all()
