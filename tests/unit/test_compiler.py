"""The compiler around a compiled target (lesson 03): checked calls, graphs, settings, and its absence."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor
from support.graphs import graphs_on_cpu
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch._inductor.utils import run_and_get_code

from lessons_lib import compiler
from lessons_lib.compiler import CompiledStep, CudaGraph, Layout
from lessons_lib.quantization import W4A16Linear, quantize
from lessons_lib.quantization.cpu.linear import PackedW8A16Linear
from lessons_lib.quantization.cpu.pointwise import multiply_by_products

pytestmark = pytest.mark.usefixtures("cold_compiler")


def test_a_missing_compiler_is_found_out_by_asking_the_compilers_own_search(monkeypatch):
    """A process of its own, since torch remembers a compiler that it has found."""
    script = (
        "import torch, sys; sys.path.insert(0, sys.argv[1]);"
        "from lessons_lib.compiler import compiler_problem;"
        "print(compiler_problem(torch.device('cpu')))"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "CXX": "/nonexistent/compiler", "PATH": ""}
    out = subprocess.run([sys.executable, "-c", script, root], env=environment, capture_output=True, text=True)
    assert out.stdout.startswith("torch.compile needs a C++ compiler and none was found"), out.stderr


SPACED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
decoder = Decoder.from_transformers(tiny(1))
target = CompiledTarget(decoder, context=32)
out = generate(target, [1, 2, 3], max_new_tokens=4)
assert " " in torch.__file__ and target.problem is None and target.compile_seconds
assert out.ids == generate(DecoderTarget(decoder), [1, 2, 3], max_new_tokens=4).ids
"""


@pytest.mark.skipif(os.name == "nt", reason="makes a link to the environment")
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment to link to")
def test_an_environment_and_a_cache_at_a_path_with_a_space_compile(tmp_path):
    spaced = tmp_path / "a folder"
    spaced.mkdir()
    (spaced / "env").symlink_to(sys.prefix, target_is_directory=True)
    python = spaced / "env" / Path(sys.executable).relative_to(sys.prefix)
    environment = {key: value for key, value in os.environ.items() if key != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"LESSONS_LIB_CACHE": str(spaced / "cache"), "TMPDIR": str(tmp_path)}
    call = [python, "-c", SPACED, str(Path(__file__).parents[2])]
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def broken_compiler(tmp_path) -> Path:
    """A compiler that says its version and compiles nothing."""
    script = tmp_path / "broken-g++"
    script.write_text(
        '#!/bin/sh\ncase "$1" in --version|-v) echo "g++ 13.0.0";; *) echo "no backend" >&2; exit 1;; esac\n'
    )
    script.chmod(0o755)
    return script


BROKEN = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, compiled
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
if sys.argv[2] == "unseen":
    compiled.compiler_problem = lambda device: None
decoder = Decoder.from_transformers(tiny())
target = CompiledTarget(decoder, context=32)
text = generate(DecoderTarget(decoder), [5, 80, 3], max_new_tokens=6).ids
assert generate(target, [5, 80, 3], max_new_tokens=6).ids == generate(target, [5, 80, 3], max_new_tokens=6).ids == text
assert not target.compile_seconds
print(target.problem)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the compiler is a shell script")
@pytest.mark.parametrize("seen, problem", [
    ("seen", r"the C\+\+ compiler .*broken-g\+\+ compiles nothing \(repair it, or set CXX to another\)"),
    ("unseen", r"torch.compile failed \(.+\)"),
])  # fmt: skip
def test_a_compiler_that_fails_at_every_file_leaves_decoding_eager_with_one_sentence(
    broken_compiler, tmp_path, seen, problem
):
    environment = {**os.environ, "CXX": str(broken_compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cold")}
    root, command = str(Path(__file__).parents[2]), [sys.executable, "-c", BROKEN]
    out = subprocess.run([*command, root, seen], env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    assert re.fullmatch(problem, out.stdout.strip()) and out.stderr.count("decoding runs uncompiled") == 1


def test_a_gpu_without_triton_is_reported_before_anything_compiles(monkeypatch):
    compiler._gpu_problem.cache_clear()
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    assert compiler.compiler_problem(torch.device("cuda")).startswith("torch.compile needs Triton")
    compiler._gpu_problem.cache_clear()
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    assert compiler.compiler_problem(torch.device("cuda")) is None
    compiler._gpu_problem.cache_clear()


def test_a_cache_that_cannot_be_written_leaves_the_compiler_its_own_folder(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "file"))
    compiler.keep_compiled_code()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "good"))
    compiler.keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "good" / "compiled")


def test_a_folder_the_user_chose_is_kept_and_torchs_own_default_is_not(monkeypatch, tmp_path):
    """Importing the compiler sets the variable to a temporary folder, whoever imports it first."""
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/their/own")
    compiler.keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/their/own"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    compiler.keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


def test_frozen_weights_are_read_in_their_own_dtype():
    """A cast in the open would be folded into the constant: the kernel would read twice the bytes."""
    head = torch.nn.Linear(64, 96, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    product = torch.compile(lambda x: multiply_by_products(x, head.weight))
    with compiler.settings(frozen=True):
        out, code = run_and_get_code(product, torch.ones(1, 64, dtype=torch.bfloat16))
    read = set(re.findall(r"const (\S+)\*", "".join(code)))
    assert read == {"at::BFloat16"}
    torch.testing.assert_close(out.float(), head.weight.float().sum(-1)[None], atol=4e-3, rtol=8e-3)


@pytest.mark.parametrize("bits", [8, 4])
def test_frozen_codes_are_unpacked_in_every_step(bits):
    """Unpacked at compile time they would be read as two to four times the bytes."""
    from torch._inductor import constant_folding

    torch.compiler.reset()
    weight, before = torch.randn(96, 64), list(constant_folding._dont_constant_fold)
    layer = PackedW8A16Linear(quantize(weight, 8)) if bits == 8 else W4A16Linear(quantize(weight, 4, 32, "affine"))
    with compiler.settings(frozen=True):
        out, code = run_and_get_code(torch.compile(lambda x: layer(x)), torch.ones(1, 64))
    assert ">>" in "".join(code) and constant_folding._dont_constant_fold == before
    torch.testing.assert_close(out, layer(torch.ones(1, 64)), rtol=1e-3, atol=1e-3)


def test_short_kernels_are_shared_by_layers_and_leave_no_setting_behind():
    from torch._inductor.codegen.cpp import CppScheduling

    usual, counts = CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM, []
    for short in (False, True):
        head, layers = torch.randn(1, 16), [torch.randn(16, 16) for _ in range(12)]

        def stack(x, layers=layers):
            for weight in layers:
                x = torch.tanh(multiply_by_products(x, weight)).softmax(-1)
            return x

        fresh = inductor.patch(fx_graph_cache=False)  # which knows nothing of how long kernels are
        with compiler.settings(short=short), fresh, torch.no_grad():
            out, (code,) = run_and_get_code(torch.compile(stack, dynamic=False), head)
        torch.testing.assert_close(out, stack(head))
        counts.append([len(re.findall(what, code, re.M)) for what in (r"^cpp_fused\w+ =", r"^ +cpp_fused\w+\(")])
        torch._dynamo.reset()
    assert CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM == usual
    (one, once), (few, calls) = counts
    assert one == once == 1 and 1 < few < calls, counts


def args(capacity=8, dtype=torch.float32, layers=2):
    """As a decoding step takes them: token, mask, keys and values."""
    buffers = lambda: [torch.zeros(2, capacity, 4, dtype=dtype) for _ in range(layers)]  # noqa: E731
    return torch.tensor([1]), torch.ones(1, capacity, dtype=torch.bool), buffers(), buffers()


OPEN_CAPACITY = ((), (None, "capacity"), (None, "capacity", None), (None, "capacity", None))


def test_arguments_like_those_of_the_first_call_pass_the_check():
    layout = Layout(args())
    for _ in range(2):
        layout.check(args())
    other_length = Layout(args(), sizes=OPEN_CAPACITY)
    for capacity in (8, 24, 5):
        other_length.check(args(capacity))


@pytest.mark.parametrize("given", [
    args(capacity=16), args(dtype=torch.bfloat16), args(layers=1), args(layers=3),
    tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args()),
    (args()[0], args()[1].new_ones(8, 1).T, *args()[2:]),
], ids=["capacity", "dtype", "a layer less", "a layer more", "device", "strides"])  # fmt: skip
def test_other_arguments_are_refused(given):
    with pytest.raises(ValueError, match="a compiled step was made for"):
        Layout(args()).check(given)


def test_a_buffer_that_is_not_as_long_as_the_others_is_refused_where_lengths_are_open():
    layout = Layout(args(), sizes=OPEN_CAPACITY)
    for part in range(1, 4):
        mixed = list(args(16))
        mixed[part] = args(24)[part]
        with pytest.raises(ValueError, match="a compiled step was made for"):
            layout.check(mixed)
    keys = args(16)[2]
    with pytest.raises(ValueError, match="a compiled step was made for"):
        layout.check((*args(16)[:2], [keys[0], args(24)[2][1]], args(16)[3]))


def moved(module):
    module.to(torch.bfloat16)


def replaced(module):
    module.weight = torch.nn.Parameter(module.weight.clone())


def removed(module):
    del module.weight


@pytest.mark.parametrize("change", [moved, replaced, removed])
def test_weights_that_are_not_those_of_the_first_call_are_noticed(change):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Embedding(4, 3))
    layout = Layout((), module)
    layout.check(())
    change(module[1])
    with pytest.raises(ValueError, match="moved, cast or replaced"):
        layout.check(())


def test_a_compiled_step_checks_every_call_but_its_first(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    module = torch.nn.Linear(4, 4)
    step = CompiledStep(lambda token, mask, keys, values: module(keys[0]), "step", weights=module)
    step(*args())
    assert step.seconds is not None
    step(*args())
    for other in (args(16), args(dtype=torch.float64)):
        with pytest.raises(ValueError, match="a compiled step was made for"):
            step(*other)
    moved(module)
    with pytest.raises(ValueError, match="moved, cast or replaced"):
        step(*args())


def doubled(token, keys, values):
    values[0].copy_(keys[0])
    return token * 2, token + 1


def test_results_of_a_replay_outlive_the_next_one_and_the_cache_is_written_in_place():
    _, _, keys, values = args()
    keys[0] += 3
    with graphs_on_cpu():
        graph = CudaGraph(doubled, (torch.tensor([7]), keys, values), None)
    values[0].zero_()
    first = graph(torch.tensor([1]), keys, values)
    second = graph(torch.tensor([5]), keys, values)
    assert [int(tensor) for tensor in (*first, *second)] == [2, 2, 10, 6]
    assert torch.equal(values[0], keys[0])


def test_a_graph_refuses_inputs_it_was_not_captured_for_another_cache_and_moved_weights():
    (token, _, keys, values), (_, _, *others), module = args(), args(), torch.nn.Linear(2, 2)
    with graphs_on_cpu():
        graph = CudaGraph(doubled, (token, keys, values), module)
    with pytest.raises(ValueError, match="made for"):  # copy_ alone would stretch or cast it
        graph(token.float(), keys, values)
    with pytest.raises(ValueError, match="captured with"):
        graph(token, *others)
    moved(module)
    with pytest.raises(ValueError, match="moved, cast or replaced"):
        graph(token, keys, values)
