"""Device and dtype: what `auto` takes and what is refused."""

import contextlib

import pytest
import torch

from lessons_lib.models.device import dtype_name, pick, pick_device, pick_dtype


@pytest.fixture
def machine(monkeypatch):
    """Sets what this machine seems to have."""

    def having(cuda=0, mps=False, gpu_bf16=True, avx512_bf16=False, amx=False, kind="x86_64", flags=""):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation: gpu_bf16 or including_emulation
        )
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr("platform.machine", lambda: kind)
        monkeypatch.setattr("lessons_lib.measure.machine._cpuinfo", lambda: flags)

    return having


@pytest.mark.parametrize("cuda, mps, expected", [(1, True, "cuda"), (0, True, "mps"), (0, False, "cpu")])
def test_auto_takes_the_fastest_device_present(machine, cuda, mps, expected):
    machine(cuda=cuda, mps=mps)
    assert pick_device("auto") == expected


@pytest.mark.parametrize(
    "device, dtype, other", [("cuda", "bf16", "fp16"), ("mps", "fp64", "fp16")], ids=["T4", "Apple GPU"]
)
def test_a_dtype_that_the_device_lacks_is_refused_with_one_that_it_has(machine, device, dtype, other):
    machine(cuda=1, mps=True, gpu_bf16=False)
    with pytest.raises(ValueError, match=f"'{dtype}' is not supported by the device '{device}'; use '{other}'"):
        pick(device, dtype)


def test_a_device_that_is_named_and_present_is_taken(machine):
    machine(cuda=2)
    assert [pick_device(name) for name in ("cpu", "cuda", "cuda:1", torch.device("cuda", 0), "cpu:0")] == [
        "cpu", "cuda", "cuda:1", "cuda:0", "cpu",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["cuda:2", "mps", "gpu", "cuda:x", ""])
def test_a_device_that_is_absent_is_refused_with_those_present(machine, name):
    machine(cuda=2)
    with pytest.raises(ValueError, match=f"device '{name}' is not here.*cuda, cpu"):
        pick_device(name)


@pytest.mark.parametrize(
    "device, has, expected",
    [
        pytest.param("cpu", {}, torch.float32, id="plain CPU"),
        pytest.param("cpu", {"avx512_bf16": True}, torch.bfloat16, id="AVX512 bf16"),
        pytest.param("cpu", {"amx": True}, torch.bfloat16, id="AMX"),
        pytest.param("cpu", {"kind": "aarch64", "flags": "fp asimd bf16 sve"}, torch.bfloat16, id="Arm bf16"),
        pytest.param("cpu", {"kind": "aarch64", "flags": "fp asimd"}, torch.float32, id="older Arm"),
        pytest.param("cuda", {"cuda": 1}, torch.bfloat16, id="Ampere or later"),
        pytest.param("cuda:0", {"cuda": 1, "gpu_bf16": False}, torch.float16, id="T4"),
        pytest.param("mps", {"mps": True}, torch.float16, id="Apple GPU"),
    ],
)
def test_auto_takes_bf16_only_where_the_device_computes_in_it(machine, device, has, expected):
    machine(**has)
    assert pick_dtype("auto", device) == expected


def test_short_names_torch_names_and_dtypes_mean_the_same():
    for short, long in {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}.items():
        dtype = getattr(torch, long)
        assert pick_dtype(short) == pick_dtype(long) == pick_dtype(dtype) == dtype
        assert dtype_name(dtype) == short


@pytest.mark.parametrize("wrong", ["bfloat15", "int8", "nn", "", torch.int8])
def test_an_unknown_dtype_is_refused_with_the_known_ones(wrong):
    with pytest.raises(ValueError, match="not known.*fp32, bf16, fp16, fp64"):
        pick_dtype(wrong)
