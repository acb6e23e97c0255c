"""Descriptors: what they hold, and what they refuse."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from devices.descriptor import (
    CAPABILITIES,
    DTYPES,
    FACTS,
    Capability,
    Descriptor,
    DescriptorError,
    Fact,
    Tolerance,
    common_facts,
)


def descriptor(**changes: Any) -> Descriptor:
    values: dict[str, Any] = {
        "name": "npu",
        "torch_type": "npu",
        "title": "An accelerator",
        "capabilities": {"strides", "storage"},
        "dtypes": {"float32", "int64"},
    }
    return Descriptor(**{**values, **changes})


def refusal(build: Callable[[], object]) -> str:
    with pytest.raises(DescriptorError) as caught:
        build()
    return str(caught.value)


def test_priorities_of_streams_have_a_range() -> None:
    given: dict[str, Any] = {"capabilities": {"streams", "stream_priority"}}
    with pytest.raises(DescriptorError, match="nothing says which priorities there are"):
        descriptor(**given)
    assert descriptor(**given, priorities=(0, -1)).priorities == (0, -1)
    assert descriptor(**given, functions={"stream": "Stream"}).functions


def test_the_capabilities_are_those_of_the_contract() -> None:
    assert set(CAPABILITIES) == {
        "strides",
        "storage",
        "pointers",
        "streams",
        "events",
        "timed_events",
        "event_ipc",
        "tensor_ipc",
        "stream_priority",
        "native_handle",
        "external_streams",
        "allocator_statistics",
        "allocator_memory_info",
        "allocator_fraction",
        "allocator_settings",
        "allocator_pools",
        "allocator_history",
        "allocator_pluggable",
        "pinned_memory",
        "host_statistics",
        "graphs",
        "graph_pools",
        "graph_modes",
        "graph_callables",
        "generator",
        "multi_device",
        "peer_access",
        "properties",
        "device_assert",
        "dlpack",
        "serialization",
        "autocast",
        "compile",
        "inductor",
        "profiler",
        "distributed",
        "sparse",
        "quantized_products",
        "fork_detection",
        "deterministic_algorithms",
    }


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_a_capability_states_in_a_sentence_what_it_means(name: str) -> None:
    assert CAPABILITIES[name].name == name
    assert re.fullmatch(r"[A-Zt].{15,}\.", CAPABILITIES[name].statement)


def test_the_facts_are_those_of_the_design() -> None:
    assert set(FACTS) == {
        *("torch", "driver", "runtime", "backend", "python"),
        *("os", "arch", "device_name", "instructions"),
    }


def test_the_version_of_the_device_s_package_is_a_fact() -> None:
    """Found by the name of the module, unless the descriptor states it."""
    package = importlib.metadata.version("pytest")
    assert descriptor(module="pytest").facts()["backend"] == package
    assert descriptor(module="pytest", facts=lambda: {"backend": "1.2"}).facts() == {
        "backend": "1.2"
    }
    assert "backend" not in descriptor(module="no_such_module").facts()
    assert "backend" not in descriptor(module=None).facts()


def test_vocabularies_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CAPABILITIES["teleport"] = Capability("teleport", "It moves.")  # type: ignore[index]


@pytest.mark.parametrize(
    ("capabilities", "pointers", "declared"),
    [
        ({"storage"}, None, True),  # as before there was a word for it
        ({"strides"}, None, False),
        ({"storage"}, False, False),
        ({"strides"}, True, True),
        ({"strides", "pointers"}, None, True),
    ],
)
def test_pointers_are_declared_as_storage_is_unless_they_are_mentioned(
    capabilities: set[str], pointers: bool | None, declared: bool
) -> None:
    made = descriptor(capabilities=capabilities, pointers=pointers)
    assert ("pointers" in made.capabilities) is declared
    again = dataclasses.replace(made, title="Another")
    assert again.capabilities == made.capabilities


def test_pointers_that_are_and_are_not_declared_are_refused() -> None:
    text = refusal(lambda: descriptor(capabilities={"pointers"}, pointers=False))
    assert "remove one of the two" in text


def test_every_dtype_is_torch_s_canonical_name() -> None:
    torch = pytest.importorskip("torch")
    known = {
        str(value).removeprefix("torch.")
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
    }
    assert known <= DTYPES


def test_a_descriptor_freezes_what_it_is_given() -> None:
    capabilities, tolerances = {"strides"}, {"float32": Tolerance(1e-5, 0)}
    made = descriptor(capabilities=capabilities, tolerances=tolerances, sources=["a", "b"])
    capabilities.add("storage")
    tolerances.clear()
    assert (made.capabilities, made.sources) == (frozenset({"strides"}), ("a", "b"))
    assert made.tolerances == {"float32": Tolerance(1e-5, 0)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]


def test_defaults_are_the_least_that_a_device_is() -> None:
    made = descriptor()
    assert (made.alignment, made.workers_per_device, made.device_count()) == (64, 1, 1)
    assert made.unavailable() is None
    for name in (
        *("granularity", "stream_pool_size", "priorities", "concurrent_launches"),
        *("busy", "gate", "module", "to_device", "from_device"),
    ):
        assert getattr(made, name) is None
    assert (made.expectations, made.folder) == (None, None)


def test_dtypes_of_an_op_are_narrowed_where_declared() -> None:
    made = descriptor(dtypes_by_op={"conv": {"float32"}})
    assert made.dtypes_of("conv") == {"float32"}
    assert made.dtypes_of("add") == {"float32", "int64"}


def test_a_narrowing_to_nothing_means_that_no_dtype_is_supported() -> None:
    assert descriptor(dtypes_by_op={"conv": set()}).dtypes_of("conv") == frozenset()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"capabilities": {"stride"}}, "device 'npu': unknown capability 'stride'; did you mean"),
    ({"capabilities": {"stride"}}, "did you mean 'strides'"),
    ({"capabilities": "strides"}, "expected a set of capability names, got 'strides'"),
    ({"capabilities": None}, "expected a set of capability names, got None"),
    ({"capabilities": {3}}, "unknown capability 3"),
    ({"dtypes": {"float"}}, "unknown dtype 'float'; did you mean"),
    ({"dtypes": {"torch.float32"}}, "unknown dtype 'torch.float32'; did you mean 'float32'"),
    ({"dtypes": set()}, "dtypes is empty: name the dtypes that the device supports"),
    ({"dtypes_by_op": {"add": {"flot32"}}}, "unknown dtype 'flot32'; did you mean 'float32'"),
    (
        {"dtypes_by_op": {"add": {"bool"}}},
        "dtypes_by_op['add'] names bool, but dtypes does not: dtypes_by_op may only narrow",
    ),
    ({"tolerances": {"float23": Tolerance(0, 0)}}, "unknown dtype 'float23'; did you mean"),
    (
        {"tolerances": {"float32": 1e-5}},
        "tolerances['float32'] must be a Tolerance(rtol, atol), got 1e-05",
    ),
    ({"alignment": 48}, "alignment must be a power of two, in bytes, got 48"),
    ({"alignment": 0}, "alignment must be an integer of at least 1, got 0"),
    ({"alignment": None}, "alignment must be an integer of at least 1, got None"),
    ({"granularity": -512}, "granularity must be an integer of at least 1, got -512"),
    ({"granularity": 512.0}, "granularity must be an integer of at least 1, got 512.0"),
    ({"stream_pool_size": True}, "stream_pool_size must be an integer of at least 1, got True"),
    ({"workers_per_device": 0}, "workers_per_device must be an integer of at least 1, got 0"),
    ({"name": "My NPU"}, "must be lower-case letters, digits, '-' and '_', got 'My NPU'"),
    ({"name": "../npu"}, "must be lower-case letters, digits, '-' and '_', got '../npu'"),
    ({"title": " "}, "title must be a non-empty string, got ' '"),
    ({"torch_type": "npu:0"}, "torch_type must be a device type without an index, got 'npu:0'"),
    ({"torch_type": None}, "torch_type must be a non-empty string, got None"),
    ({"module": ""}, "module must be the name of a module, got ''"),
    ({"sources": "https://x"}, "sources must be a collection of strings, got 'https://x'"),
    ({"permitted_fallbacks": {1}}, "permitted_fallbacks must be a collection of strings, got {1}"),
    ({"facts": {"os": "linux"}}, "facts must be a function, got {'os': 'linux'}"),
    ({"unavailable": None}, "unavailable must be a function, got None"),
    ({"device_count": 2}, "device_count must be a function, got 2"),
    ({"busy": 5}, "busy must be a function or None, got 5"),
    ({"gate": 5}, "gate must be a function or None, got 5"),
    ({"concurrent_launches": 0}, "concurrent_launches must be an integer of at least 1, got 0"),
    ({"priorities": (0, 1.5)}, "priorities must be two integers, the lowest and the highest"),
    ({"statistics": {"num_oom"}}, "unknown statistic 'num_oom'; did you mean 'num_ooms'"),
    ({"settings": {"max_split"}}, "unknown setting 'max_split'"),
    ({"functions": {"snap": "x"}}, "unknown function 'snap'; did you mean 'snapshot'"),
    ({"functions": {"snapshot": "memory..x"}}, "must be a name inside the device's module"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_is_refused_with_its_cause(changes: dict[str, Any], text: str) -> None:
    assert text in refusal(lambda: descriptor(**changes))


def test_a_refusal_names_the_device() -> None:
    assert refusal(lambda: descriptor(alignment=3)).startswith("device 'npu': ")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_finite_and_not_negative(value: float) -> None:
    wanted = f"must be a finite number of at least 0, got {value}"
    assert refusal(lambda: Tolerance(value, 0.0)) == f"rtol {wanted}"
    assert refusal(lambda: Tolerance(0.0, value)) == f"atol {wanted}"


def test_a_tolerance_is_a_number() -> None:
    wrong: Any = "1e-5"
    assert (
        refusal(lambda: Tolerance(wrong, 0))
        == "rtol must be a finite number of at least 0, got '1e-5'"
    )


def test_facts_are_handed_through() -> None:
    made = descriptor(facts=lambda: {"driver": "26.18", "torch": "2.13.0+cpu"})
    assert made.facts() == {"driver": "26.18", "torch": "2.13.0+cpu"}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (lambda: {"drivr": "1"}, "facts(): unknown fact 'drivr'; did you mean 'driver'?"),
        (lambda: {"driver": ""}, "the fact 'driver' is '': give a non-empty string"),
        (lambda: {"driver": None}, "or leave the fact out if its value is unknown on the machine"),
        (lambda: ["driver"], "facts(): expected a mapping, got ['driver']"),
        (lambda: 1 // 0, "reading its facts raised ZeroDivisionError: integer division"),
    ],
)
def test_wrong_facts_are_refused_when_read(
    facts: Callable[[], Mapping[str, str]], text: str
) -> None:
    made = descriptor(facts=facts)
    message = refusal(made.facts)
    assert message.startswith("device 'npu': ")
    assert text in message


def test_a_copy_s_facts_are_checked_once() -> None:
    made = descriptor(facts=lambda: {"drivr": "1"})
    assert refusal(dataclasses.replace(made).facts) == refusal(made.facts)


def test_a_fact_has_a_known_name() -> None:
    assert Fact("os", "linux").value == "linux"
    assert "unknown fact 'pyton'; did you mean 'python'?" in refusal(lambda: Fact("pyton", "3"))


def test_common_facts_are_those_that_every_machine_knows() -> None:
    assert set(common_facts()) == {"torch", "os", "arch", "python"}


def test_common_facts_keep_the_local_part_of_torch_s_version() -> None:
    assert common_facts()["torch"] == importlib.metadata.version("torch")


def test_without_torch_its_version_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert "torch" not in common_facts()


def test_a_function_is_named_by_its_role() -> None:
    made = descriptor(functions={"snapshot": "memory._snapshot"})
    assert made.function("snapshot") == "memory._snapshot"
    assert "declares no function for 'pool' (pool(): a private" in refusal(
        lambda: made.function("pool")
    )
    assert "unknown function 'snap'" in refusal(lambda: made.function("snap"))
