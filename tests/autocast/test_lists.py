"""The lists of autocast are torch's; what descriptors declare names ops that are asked; a device is asked rightly."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from conformance.checks.autocast import asking
from conformance.checks.autocast.calls import ARGUMENTS, overload
from conformance.checks.autocast.lists import LEFT_OUT, LISTS, POLICY
from devices import registry
from devices.descriptor import AUTOCAST_POLICIES, Autocast, DescriptorError
from devices.simulated.backend.fault_switches import planted
from opinfo.device import Device, open_device
from opinfo.torch_private import has_kernel

_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
_MACROS = {
    "lower": "AT_FORALL_LOWER_PRECISION_FP",
    "float32": "AT_FORALL_FP32",
    "float32_by_default": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "promote": "AT_FORALL_PROMOTE",
}
#: In torch's lists by another macro, or by hand for each device (docs/source/accelerator/amp.md).
_BESIDE = {"float32": {"norm.Scalar", "norm.ScalarOpt_dim"}, "promote": {"cat", "stack"}}


@cache
def of_header(macro: str) -> frozenset[str]:
    """The ops of a macro of torch's header, each with its overload."""
    text = _HEADER.read_text(encoding="utf-8")
    start = text.index(f"#define {macro}(_)")
    body = text[start : text.index("\n\n", start)]
    found = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body)
    return frozenset(f"{op}.{last}" if last else op for op, last in found)


@pytest.mark.parametrize("policy", _MACROS)
def test_a_list_is_that_of_torch_s_header(policy: str) -> None:
    asked = {*LISTS[policy], *(op for op in LEFT_OUT if op in of_header(_MACROS[policy]))}
    assert asked - _BESIDE.get(policy, set()) == of_header(_MACROS[policy])


def has_a_kernel_for_the_cpu(op: str) -> bool:
    """Whether the dispatcher has a kernel of the CPU, or one for every device."""
    every = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    keys = ("CPU", *every, "CompositeExplicitAutogradNonFunctional")
    return any(has_kernel(f"aten::{op}", key) for key in keys)


def test_the_ops_that_are_left_out_are_those_that_only_some_devices_have() -> None:
    """The CPU has no result to compare with."""
    of_torch = {op for macro in _MACROS.values() for op in of_header(macro)}
    assert {op for op in of_torch if not has_a_kernel_for_the_cpu(op)} == {*LEFT_OUT}


def test_the_macros_have_been_read() -> None:
    assert {policy: len(of_header(_MACROS[policy])) > 9 for policy in _MACROS} == dict.fromkeys(
        _MACROS, True
    )


def test_every_op_has_one_policy_and_one_call() -> None:
    assert sum(map(len, LISTS.values())) == len(POLICY)
    assert set(POLICY) == set(ARGUMENTS)
    assert set(LISTS) <= AUTOCAST_POLICIES


@pytest.mark.parametrize("op", POLICY)
def test_an_op_is_one_of_torch_s(op: str) -> None:
    assert callable(overload(op))


@pytest.mark.parametrize(
    "name", ["cpu", "cuda", "hpu", "lazy", "mps", "mtia", "npu", "simulated", "xpu"]
)
def test_a_descriptor_names_ops_that_are_asked_and_each_once(name: str) -> None:
    named = [op for each in registry.get(name).autocast for op in each.ops]
    assert sorted(set(named) - set(POLICY)) == [] and len(set(named)) == len(named)


@pytest.mark.parametrize(
    "given",
    [
        ("half", frozenset({"mm"}), "a reason"),
        ("lower", frozenset(), "a reason"),
        ("lower", frozenset({"mm"}), " "),
    ],
)
def test_an_impossible_declaration_is_refused(given: tuple[str, frozenset[str], str]) -> None:
    with pytest.raises(DescriptorError):
        Autocast(*given)


# Asking


@pytest.fixture(scope="module")
def simulated() -> Device:
    return open_device(registry.get("simulated"))


LOWER = [torch.bfloat16, torch.float16]


def test_the_simulated_device_has_torch_s_lists(simulated: Device) -> None:
    assert asking.differing(simulated, LOWER) == {}


def test_an_op_in_another_list_is_told(simulated: Device) -> None:
    with planted("autocast.op_in_wrong_list", "autocast.unlisted_op_cast"):
        assert asking.differing(simulated, LOWER) == {"lower": ["log", "maximum"]}
    with planted("autocast.op_left_in_float32"):
        assert asking.differing(simulated, LOWER) == {"unlisted": ["mm"]}


def test_the_cpu_declares_what_it_shows() -> None:
    """But for ops that are composed of others, and those that promote without autocast too."""
    cpu = open_device(registry.get("cpu"))
    own = {op: each.policy for each in cpu.descriptor.autocast for op in each.ops}
    shown = {op: p for p, ops in asking.differing(cpu, LOWER).items() for op in ops}
    assert {op for op in shown if op not in own} == set()
    unlike = {op for op, policy in own.items() if shown.get(op) != policy}
    assert {op for op in unlike if own[op] != "composed"} == {"addcdiv", "addcmul", "atan2"}
