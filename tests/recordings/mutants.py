"""``python -m tests.recordings.mutants``: mutants in front of calls that the recorded example programs make, on the
simulated device, and whether a replay notices each and charges it to the right call and line.

A mutant is drawn for a call until it changes what the call returns, or leaves in memory, with the recorded layout: a fault
that the program could meet. Then the calls of the program are judged as a replay judges them.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, Final

import torch

from conformance import contract
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.plan.planner import undeclared_clauses, untried_with
from conformance.recordings.outcomes import judge_calls
from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import AtenCall, RecordedSource
from conformance.run.item_report import verdict_of
from conformance.suites import planned_op_checks
from devices.cell import CellKey
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.axes import samples_of
from opinfo.compare import bit_equal, tensors_of
from opinfo.exceptions import exceptions
from opinfo.guarded import strided_view
from opinfo.layouts import forget_geometries
from opinfo.plan import plan_spec
from opinfo.reference import StrideReference, forget_dispatches
from opinfo.samples import probe, seed_everything
from opinfo.shared_memory import blocks_of
from reports.model import CellResult
from reports.replayed_calls import CallOutcome, JudgedCall
from tests.mutation.items import device
from tests.mutation.kernels import TOOLS, Result, drawn_fault, facts_of_calls
from tests.planting.calls import Effect, KernelCall
from tests.planting.places import planted

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "recordings"
#: How many mutants are drawn for a call before another call is tried; seeds of the elements with which a mutant must show.
_DRAWS, _SEEDS = 40, range(6)
#: How many calls of other ops are judged with each mutant, which must stay right.
_OTHERS: Final = 3


@cache
def recorded(program: str) -> RecordedSource:
    """The calls of an example program."""
    recorder = CallRecorder()
    before = Path.cwd()
    os.chdir(EXAMPLES.parents[1])  # places are relative to the current folder
    try:
        with recorder.recording_program():
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        return RecordedSource(recorder.recording(), "0" * 16)
    finally:
        os.chdir(before)


def programs() -> list[str]:
    return sorted(each.name for each in EXAMPLES.glob("*.py"))


def overload_name(call: AtenCall) -> str:
    """As the overloads of mutants are named: ``add.Tensor``, or ``exp`` for the default one."""
    return str(call.overload).removeprefix("aten.").removesuffix(".default")


def targets_in(program: str) -> dict[str, AtenCall]:
    """The calls of a program in front of which mutants are put: those that compute something. Numbers that are drawn at
    random are judged by cases of the plans, not by a replay."""
    found = {}
    for name, call in recorded(program).subjects().items():
        assert isinstance(call, AtenCall)
        ours = call.call.op.startswith("aten.") and overload_name(call) not in TOOLS
        if ours and call.call.tensors and "values.free" not in call.own_families:
            found[name] = call
    return found


def names(seed: int, count: int) -> list[str]:
    """``program|call`` of mutants 0 to count - 1: programs in turn, and a call of each drawn by the seed."""
    rng, found = Random(seed), []
    known = {program: sorted(targets_in(program)) for program in programs()}
    left: dict[str, list[str]] = {program: [] for program in known}
    for number in range(count):
        program = programs()[number % len(known)]
        if not left[program]:
            left[program] = rng.sample(known[program], len(known[program]))
        found.append(f"{program}|{left[program].pop()}")
    return found


# -- a call as the program makes it


def made(call: AtenCall, seed: int) -> KernelCall:
    """The recorded call on the device, with its recorded strides, offsets and shared memory."""
    source = RecordedSource(_only(call), "0" * 16)
    (sample,) = source.samples(call, call.call.dtype, seed=seed)
    geometries = sample.geometries or ()
    storages = sample.storages or tuple(range(len(geometries)))
    bases = [
        each.to(device().torch_device) for each in blocks_of(sample.tensors, geometries, storages)
    ]
    tensors = [
        strided_view(bases[number], value.dtype, geometry)
        for number, value, geometry in zip(storages, sample.tensors, geometries, strict=True)
    ]
    return KernelCall(call.overload, *sample.call.on(tensors, device().torch_device))


def _only(call: AtenCall) -> Any:
    recording = recorded(programs()[0]).recording
    return type(recording)(recording.header, (call.call,))


def outcome(call: AtenCall, seed: int, times: int) -> list[Any]:
    """What repeated calls return and leave in the storages of their operands; or the type of the exception."""
    found: list[Any] = []
    for number in range(times):
        each = made(call, seed + number)
        try:
            result = each.honest()
        except Exception as error:  # a mutant may refuse the call
            found.append(type(error).__name__)
            continue
        storages = [
            torch.empty(0, dtype=torch.uint8, device=one.device).set_(one.untyped_storage()).cpu()
            for one in tensors_of((each.args, each.kwargs))
        ]
        about = [(one.shape, one.stride(), one.storage_offset()) for one in tensors_of(result)]
        found.append(
            (
                result if not tensors_of(result) else [one.cpu() for one in tensors_of(result)],
                about,
                storages,
            )
        )
    return found


def strikes(call: AtenCall, again: Callable[[], Effect]) -> bool:
    """Whether a mutant changes what the program would see of this call: by more than a rounding in its result, or in a byte
    of its operands."""
    for seed in _SEEDS:
        clean = outcome(call, seed, 2)
        with planted((overload_name(call),), again()):
            faulty = outcome(call, seed, 2)
        if any(_differ(one, other) for one, other in zip(clean, faulty)):
            return True
    return False


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one != other) if isinstance(one, str) == isinstance(other, str) else True
    results, about, storages = zip(one, other)
    if about[0] != about[1]:
        return True
    if not isinstance(results[0], list) or not isinstance(results[1], list):
        return bool(results[0] != results[1])
    pairs = [*zip(*results, strict=True)]
    return any(not bit_equal(a, b) for a, b in [*pairs, *zip(*storages)])


# -- the judgement, as a replay makes it


class Judged:
    """A recorded call of a program, with what all its judgements share."""

    def __init__(self, program: str, name: str) -> None:
        forget_geometries()
        self.source = recorded(program)
        subject = self.source.subjects()[name]
        assert isinstance(subject, AtenCall)
        self.subject, self.dtype = subject, subject.call.dtype
        drawn = self.source.samples(subject, self.dtype)
        declared = device().descriptor.dtypes
        self.samples = samples_of(
            subject, self.dtype, plan_spec("replay").samples, frozenset(declared), drawn
        )
        self.traits = probe(subject, self.dtype, self.samples, exceptions())
        whole = contract.load()
        undeclared = undeclared_clauses(device().descriptor, whole)
        self.checks = [
            check
            for check in planned_op_checks(whole)
            if check.applies(self.traits)
            and not check.variants[0]
            and check.clause not in undeclared
            and exceptions().excluded(check.clause, name, self.dtype, fake_only=False) is None
        ]
        self.clean = {each for found in self.parts() for each, bad in found.items() if bad}

    def parts(self) -> Iterator[dict[CellKey, CellResult | None]]:
        """For each cell of the call, its result if it fails; first those of the suite ``layout``, which notice most."""
        name = self.subject.id
        first = [c for c in self.checks if c.clause.startswith("layout.")]
        for checks in (first, [c for c in self.checks if c not in first]):
            clauses = [each.clause for each in checks]
            withheld = untried_with(
                [name], device().descriptor, contract.load(), clauses, self.source
            )[name]
            recorder = Recorder(name, self.dtype, clauses, {}, withheld)
            strides = StrideReference("simulated", None)
            about = (
                self.subject,
                self.dtype,
                self.traits,
                self.samples,
                device(),
                strides,
                recorder,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seed_everything(0)
                run_checks(OpContext(*about, exceptions()), checks)
            forget_dispatches()
            found = {}
            for record in recorder.cells.values():
                it = record.to_outcome()
                verdict = verdict_of(Matcher(Manifest()), it)[0]
                bad = verdict.value == "regression"
                found[it.cell] = (
                    CellResult(key=it.cell, outcome=it.outcome, verdict=verdict) if bad else None
                )
            yield found

    def newly_wrong(self) -> dict[CellKey, CellResult]:
        """The cells that fail now and did not fail without the mutant, until some do."""
        for found in self.parts():
            bad = {
                key: its for key, its in found.items() if its is not None and key not in self.clean
            }
            if bad:
                return bad
        return {}


@lru_cache(maxsize=8)
def judged(program: str, name: str) -> Judged:
    return Judged(program, name)


def charged(program: str, name: str, again: Callable[[], Effect]) -> tuple[list[JudgedCall], int]:
    """The calls that the replay calls wrong with a mutant, and how often the mutant struck. Judged are the call itself, and
    calls of other ops."""
    source, target = recorded(program), targets_in(program)[name]
    others = [
        each for each, call in targets_in(program).items() if call.overload is not target.overload
    ]
    chosen = [name, *Random(name).sample(others, min(_OTHERS, len(others)))]
    for each in chosen:
        judged(program, each)  # its clean judgement comes first
    results: dict[CellKey, CellResult] = {}
    reached = 0
    for each in chosen:
        with planted((overload_name(target),), again()) as run:
            results |= judged(program, each).newly_wrong()
        reached += run.reached
    listed = judge_calls(source.recording, results, {})
    wrong = (CallOutcome.RIGHT, CallOutcome.NOT_BY_VALUE, CallOutcome.NOT_JUDGED)
    return [each for each in listed if each.outcome not in wrong], reached


def drawn_for(call: AtenCall, rng_seed: str) -> tuple[str, str, Effect] | None:
    calls = [made(call, seed) for seed in (0, 1)]
    return drawn_fault(facts_of_calls(calls, (call.call.dtype,)), Random(rng_seed))


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Draw a mutant for a call until one shows in it, and judge the program's calls with it."""
    program, _, call_name = name.partition("|")
    call = targets_in(program)[call_name]
    found = Result(
        f"r{number:04d}", program, call_name, "none", "no mutant shows in the call", "equivalent"
    )
    for draw in range(_DRAWS):
        key = f"{seed} {number} {draw}"
        mutant = drawn_for(call, key)
        if mutant is None:
            break

        def again(key: str = key, first: tuple[str, str, Effect] = mutant) -> Effect:
            return (drawn_for(call, key) or first)[2]

        if strikes(call, again):
            found.axis, found.kind, found.result = (
                mutant[0],
                f"{overload_name(call)}: {mutant[1]}",
                "",
            )
            tell(found)
            wrong, found.reached = charged(program, call_name, again)
            _credit(found, call, wrong)
            return found
    return found


def _credit(found: Result, call: AtenCall, wrong: Sequence[JudgedCall]) -> None:
    if not wrong:
        found.result = "survived" if found.reached else "not_reached"
        return
    found.credit(sorted({cell.partition("::")[0] for each in wrong for cell in each.cells}))
    blamed = [(each.call, each.where) for each in wrong]
    right = blamed == [(call.id, call.call.where)] and bool(call.call.where)
    found.note = f"charged to {call.call.where}" if right else f"charged wrongly: {blamed}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Exit 1 if fewer than 95 percent are noticed, or if one is charged to another call or line."""
    from tests.mutation.__main__ import tried as try_all
    from tests.mutation.report import lines, live, score

    parser = argparse.ArgumentParser(prog="python -m tests.recordings.mutants", description=__doc__)
    parser.add_argument(
        "--seed", type=int, required=True, help="the same mutants for the same seed"
    )
    parser.add_argument(
        "--count", type=int, default=60, help="number of mutants (default: %(default)s)"
    )
    parser.add_argument(
        "-n", type=int, default=1, help="number of processes (default: %(default)s)"
    )
    parser.add_argument(
        "--resume", type=Path, help="write each result to this file, and skip those in it"
    )
    given = parser.parse_args(arguments)
    results = try_all(given.seed, given.count, "recordings", given.n, given.resume)
    for each in results:
        print(
            f"{each.id} {each.family} {each.op}: {each.kind}: {each.result} {', '.join(each.by[:2])} {each.note}"
        )
    print(f"Seed {given.seed}.", *lines(results), sep="\n")
    noticed = [each for each in results if each.result == "noticed"]
    right = sum(each.note.startswith("charged to ") for each in noticed)
    print(
        f"{len(noticed)} of {len(live(results))} noticed; {right} of {len(noticed)} charged to the right call and line"
    )
    return int(score(results) < 95 or right < len(noticed))


if __name__ == "__main__":
    sys.exit(main())
