"""What the CPU's descriptor declares, held against the torch that is installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from devices import registry
from devices.cpu import descriptor
from devices.descriptor import CAPABILITIES, DTYPES
from devices.manifest import Manifest

torch: Any = pytest.importorskip("torch")
CPU = registry.get("cpu")


def _allocates_and_converts(dtype: Any) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 is experimental, complex to real
            torch.empty(4, dtype=dtype)
            torch.ones(4).to(dtype).to(torch.float32)
    except (RuntimeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_a_dtype_is_declared_if_it_allocates_and_converts(name: str) -> None:
    dtype = getattr(torch, name, None)
    assert (dtype is not None and _allocates_and_converts(dtype)) == (name in CPU.dtypes)


def test_allocations_keep_the_declared_alignment() -> None:
    kept = [torch.empty(size, dtype=torch.uint8) for size in (1, 3, 63, 65, 4097) * 20]
    assert {tensor.data_ptr() % CPU.alignment for tensor in kept} == {0}


def test_what_needs_an_accelerator_is_not_declared() -> None:
    prefixes = ("stream", "event", "allocator", "graph", "native", "external", "timed", "host")
    assert not [name for name in CPU.capabilities if name.startswith(prefixes)]
    assert "pinned_memory" not in CPU.capabilities


def test_its_capabilities_are_known_ones_and_some() -> None:
    assert {"strides", "storage", "serialization"} <= CPU.capabilities < set(CAPABILITIES)


def test_its_facts_name_the_processor_and_no_driver() -> None:
    facts = CPU.facts()
    assert set(facts) == {"torch", "os", "arch", "python", "device_name", "instructions"}
    assert facts["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("", "other"),
        ("sse4_2 avx avx2 avx512f", "avx2"),
        ("avx2 avx512f avx512bw avx512vl avx512dq", "avx512"),
        ("avx512dq avx512bw avx512vl avx512_fp16 avx_ne_convert", "avx512_fp16"),
        ("avx2 avx_ne_convert", "avx_ne_convert"),
    ],
)
def test_the_instructions_are_those_that_onednn_asks_for(
    flags: str, instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptor, "_cpuinfo", lambda *names: flags)
    assert CPU.facts()["instructions"] == instructions


def test_its_manifest_can_be_read_and_holds_on_this_machine() -> None:
    assert CPU.expectations is not None
    assert Manifest.load(CPU.expectations).active(CPU.facts()).path == CPU.expectations


def test_it_can_be_used_everywhere() -> None:
    assert CPU.unavailable() is None
    assert CPU.device_count() == 1
    assert CPU.workers_per_device >= 1
