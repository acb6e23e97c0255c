"""Mutants of exported programs: of what ``torch.export`` returns, and of what it leaves when it moves, loads or decomposes a
program.

The device is the simulated one. The name of a mutant describes it completely: ``step|effect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch import fx

from conformance.checks.cases.cases import BehaviourCase
from conformance.suites.compile import exported_programs
from devices.cell import Outcome
from tests.mutation.compile.listing import all_in_turn, cases_of
from tests.mutation.compile.trial import Counted, Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.items import device, is_refused
from tests.mutation.kernels import Result

FAMILY: Final = "export"

#: Changes a program in place. Returns False if there is nothing to change.
Change = Callable[[Any], bool]


def _calls(program: Any, *packets: str) -> list[fx.Node]:
    """The calls of ops in a program's graph, by the names of their packets."""
    return [
        node
        for node in program.graph.nodes
        if getattr(getattr(node.target, "overloadpacket", None), "__name__", "") in packets
    ]


def _left_out(*packets: str) -> Change:
    """The first call of one of these ops returns its first operand."""

    def changed(program: Any) -> bool:
        for node in _calls(program, *packets)[:1]:
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
            return True
        return False

    return changed


def _contiguous(program: Any) -> bool:
    found = _calls(program, "transpose", "permute")
    for node in found:
        with program.graph.inserting_after(node):
            dense = program.graph.call_function(torch.ops.aten.contiguous.default, (node,))
        dense.meta.update(node.meta)
        node.replace_all_uses_with(
            dense, delete_user_cb=lambda user, dense=dense: user is not dense
        )
    output = program.graph.output_node()
    names = [each.name for each in output.args[0]]
    for spec, name in zip(program.graph_signature.output_specs, names, strict=True):
        spec.arg.name = name
    return bool(found)


def _other_mode(program: Any) -> bool:
    found = _calls(program, "batch_norm")
    for node in found:
        node.args = tuple(
            not each if isinstance(each, bool) and n == 5 else each
            for n, each in enumerate(node.args)
        )
    return bool(found)


def _constant_sizes(program: Any) -> bool:
    found = _calls(program, "sym_size")
    for node in found:
        node.replace_all_uses_with(3)
    return bool(found)


def _created_on_the_cpu(program: Any) -> bool:
    found = [node for node in program.graph.nodes if "device" in node.kwargs]
    for node in found:
        node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    return bool(found)


def _in_state(parameters: bool, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Changes the parameters, or the buffers."""

    def changed(program: Any) -> bool:
        found = False
        for name, each in list(program.state_dict.items()):
            if isinstance(each, torch.nn.Parameter) is parameters:
                before = each.detach()
                other = change(before)
                found = found or other is not before
                program.state_dict[name] = torch.nn.Parameter(other) if parameters else other
        return found

    return changed


def _to_index_0(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.device(tensor.device.type, 0)) if tensor.device.type != "cpu" else tensor


EFFECTS: Final[dict[str, Change]] = {
    "relu is left out": _left_out("relu"),
    "a buffer is not written": _left_out("add_", "add"),
    "a result is contiguous": _contiguous,
    "batch norm is in the other mode": _other_mode,
    "sizes are constants": _constant_sizes,
    "tensors are created on the CPU": _created_on_the_cpu,
    "parameters are rounded": _in_state(True, lambda x: x.bfloat16().float()),
    "parameters are contiguous": _in_state(True, torch.Tensor.contiguous),
    "parameters are on index 0": _in_state(True, _to_index_0),
    "buffers have other values": _in_state(False, lambda x: x + 1),
    "buffers are on index 0": _in_state(False, _to_index_0),
}
_ON_THE_DEVICE: Final = ("for_evaluation", "for_training")
#: The steps that return a program: the objects that have them, and the cases that take them, the quick ones first.
STEPS: Final[dict[str, tuple[Callable[[], tuple[Any, str]], tuple[str, ...]]]] = {
    "export": (
        lambda: (torch.export, "export"),
        (*_ON_THE_DEVICE, "moved_to_the_device", "compiled_program", "in_another_process"),
    ),
    "load": (lambda: (torch.export, "load"), ("moved_to_the_device",)),
    "move": (lambda: (exported_programs, "move_to_device_pass"), ("moved_to_the_device",)),
    "decompose": (lambda: (torch.export.ExportedProgram, "run_decompositions"), _ON_THE_DEVICE),
}


#: What a step cannot get wrong here: a program is loaded on the CPU, only ``export`` and ``decompose`` are given sizes that change,
#: and a decomposed program has no call of ``batch_norm``.
_NEVER: Final[dict[str, tuple[str, ...]]] = {
    "load": (
        *("tensors are created on the CPU", "sizes are constants"),
        *("parameters are on index 0", "buffers are on index 0"),
    ),
    "move": ("sizes are constants",),
    "decompose": ("batch norm is in the other mode",),
}


class Spec(NamedTuple):
    """A mutant: what is wrong with the program that a step returns."""

    step: str
    effect: str


def names(seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1: all of them in an order drawn from the seed, then all again."""
    known = ["|".join((s, e)) for s in STEPS for e in EFFECTS if e not in _NEVER.get(s, ())]
    return all_in_turn(FAMILY, known, seed, count)


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block."""
    state = Counted(sham)
    holder, name = STEPS[spec.step][0]()
    right, change = getattr(holder, name), EFFECTS[spec.effect]

    def wrong(*args: Any, **kwargs: Any) -> Any:
        program = right(*args, **kwargs)
        state.ran += 1
        if not sham and change(program):
            state.reached += 1
            program.graph_module.recompile()
        return program

    with mock.patch.object(holder, name, wrong):
        yield state


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases of exported programs, those of plan quick first."""
    return cases_of(exported_programs.CLAUSE, device(), indices=2)


def outcome(case: BehaviourCase) -> Outcome:
    return Outcome.FAIL if is_refused(case) else Outcome.PASS


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    found = Result(f"c{number:04d}", FAMILY, spec.step, "always", spec.effect, "")
    tell(found)
    order = STEPS[spec.step][1]
    own = sorted(
        (each for each in cases() if each.name in order), key=lambda x: order.index(x.name)
    )
    return attempt(found, own, lambda sham: planted(spec, sham), outcome, probe, tell)


def probe(plant: Plant) -> Answer:
    """No other programs are known than those of the cases: a mutant that none of them notices is live."""
    return Answer("no probe", 0)
