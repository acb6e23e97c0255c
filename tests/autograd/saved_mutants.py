"""Backward kernels of the simulated device that read one of their saved tensors as if it were contiguous, drawn by a seed.

``python -m tests.autograd.saved_mutants [--seed N] [--count K]`` draws K pairs of a backward overload and one of its
tensor arguments, of all that the ops of torch's database reach, plants the fault, and runs the op's cells. It prints for
each pair whether ``autograd.saved_strides`` noticed it, only ``autograd.first`` did, or nothing.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.ops.context import run_checks
from conformance.suites.autograd import SUITE
from conformance.suites.autograd.first_order import FIRST
from conformance.suites.autograd.samples import few_of_torch, known_of
from conformance.suites.autograd.saved_strides import SAVED, applies
from devices.cell import Outcome
from opinfo.catalog import catalogue
from opinfo.compare import tensors_of
from tests.mutation.items import Subject, device
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import Planted
from tests.planting.tensors import as_dense

Pair = tuple[str, str, str]  # the op, the overload, its argument


class _Backward(TorchDispatchMode):
    """Notes the backward overloads in a block, with their tensor arguments that have several elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "backward" in func._schema.name:
            name = f"{func._schema.name.removeprefix('aten::')}.{func._overloadname}"
            for argument, given in zip(func._schema.arguments, args):
                if isinstance(given, torch.Tensor) and given.numel() > 1:
                    self.found.add((name.removesuffix(".default"), argument.name))
        return func(*args, **(kwargs or {}))


def subjects() -> Iterator[tuple[str, Subject]]:
    """The ops to which ``autograd.saved_strides`` applies, with those that ``exceptions.toml`` leaves out."""
    for op, info in catalogue().items():
        if "float32" in info.gradient_dtypes:
            subject = Subject(op, "float32", run=False)
            if applies(subject.traits):
                yield op, subject


def pairs() -> Iterator[Pair]:
    """Every backward overload that the CPU's ops reach and that the simulated device has a kernel of, with each tensor
    argument but the first one, which is the gradient of the result."""
    for op, subject in subjects():
        context = subject.context([SAVED])
        with _Backward() as mode:
            for sample in few_of_torch(context, 2):
                _differentiate(context, sample)
        for overload, argument in sorted(mode.found):
            packet, _, name = overload.partition(".")
            function = getattr(getattr(torch.ops.aten, packet), name or "default")
            first = function._schema.arguments[0].name
            has = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "PrivateUse1")
            if has and argument != first:
                yield op, overload, argument


def _differentiate(context: Any, sample: Any) -> None:
    places = known_of(context, sample).places
    tensors = [t.clone().requires_grad_(n in places) for n, t in enumerate(sample.tensors)]
    args, kwargs = sample.call.bind(tensors)
    with torch.enable_grad():
        made = tensors_of(context.subject.reference(*args, **kwargs))
        ends = [e for e in made if e.requires_grad and e.layout == torch.strided]
        if not ends:
            return
        leaves = [tensors[place] for place in places]
        torch.autograd.grad(ends, leaves, [torch.ones_like(e) for e in ends], allow_unused=True)


def misread(argument: str, answers: list[Any]) -> Effect:
    """The argument read in a row. The results are added to ``answers``; there are none if the kernel refuses the strides."""

    def effect(call: KernelCall) -> Any:
        given = call.values.get(argument)
        if not isinstance(given, torch.Tensor) or given.is_contiguous():
            return NOT_MET
        answers.append(call.honest(**{argument: as_dense(given)}))
        return answers[-1]

    return effect


def spoilt(argument: str) -> Effect:
    """Other values in the argument: where this changes no gradient, the backward does not read them."""

    def effect(call: KernelCall) -> Any:
        given = call.values.get(argument)
        if not isinstance(given, torch.Tensor) or given.numel() < 2:
            return NOT_MET
        return call.honest(**{argument: given.flatten().roll(1).view(given.shape)})

    return effect


def result_of(op: str, overload: str, argument: str) -> str:
    """What became of a mutant: "noticed" by the clause, "by others", "survived", "not reached", or "equivalent" if the
    backward does not read the values of the argument. A call that the kernel refuses does not reach the mutant. Switches faults on in this process."""

    def red(effect: Effect) -> list[str]:
        planted = Planted((overload,), effect)
        planted.switch_on()
        try:
            context = Subject(op, "float32", run=False).context([SAVED, FIRST])
            run_checks(context, SUITE.op_checks)
        finally:
            planted.switch_off()
        cells = context.recorder.cells
        return [c for c in cells if cells[c].outcome() is Outcome.FAIL]

    device()  # its kernels are there before a fault replaces them
    answers: list[Any] = []
    found = red(misread(argument, answers))
    if SAVED in found:
        return "noticed"
    if not red(spoilt(argument)):
        return "equivalent"
    return "by others" if found else "survived" if answers else "not reached"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", nargs=3, metavar=("OP", "OVERLOAD", "ARGUMENT"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.only:
        print(result_of(*asked.only))
        return 0
    seen: dict[tuple[str, str], str] = {}
    for op, overload, argument in pairs():
        seen.setdefault((overload, argument), op)
    drawn = random.Random(asked.seed).sample(sorted(seen), min(asked.count, len(seen)))
    counts: Counter[str] = Counter()
    for overload, argument in drawn:
        op = seen[overload, argument]
        # In a process of its own, which a misread index may end.
        command = [
            sys.executable,
            "-m",
            "tests.autograd.saved_mutants",
            "--only",
            op,
            overload,
            argument,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode > 0:
            sys.exit(f"{shlex.join(command)} failed:\n{done.stderr}")
        ended = " (its process was ended)" if done.returncode < 0 else ""
        result = "noticed" if ended else done.stdout.strip()
        counts[result] += 1
        print(f"{result:12} {overload} reads {argument} in a row ({op}){ended}", flush=True)
    print(f"{len(seen)} pairs; of {len(drawn)}: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
