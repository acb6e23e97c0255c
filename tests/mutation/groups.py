"""Mutants of a process group, drawn from a seed and tried.

The cases of ``distributed`` that reach a mutant should notice it. If none does, a probe calls the collective with tensors of
other layouts, dtypes and sizes; if calls of the probe run the mutated code and no result differs, the mutant is equivalent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from random import Random
from typing import Literal

import torch
import torch.distributed as dist

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.cases.processes import DeviceLocator
from conformance.suites.distributed.collective_calls import (
    COLLECTIVES,
    ROOTED,
    Collective,
    Views,
)
from conformance.suites.distributed.groups import Ranks, join
from conformance.suites.distributed.views import put
from devices.cell import Outcome
from opinfo.device import Device
from tests.distributed import measure
from tests.distributed.faulty import ENVIRONMENT
from tests.mutation import group_reach
from tests.mutation.baseline import is_cause
from tests.mutation.group_mutants import (
    ALL,
    EARLIER,
    REDUCTIONS,
    ROOTS,
    Spec,
    conditions_of,
    kinds_of,
)
from tests.mutation.kernels import PROBING, Result

Tensor = torch.Tensor


def names(seed: int, count: int) -> list[str]:
    """The names of mutants 0 to count - 1: every collective in turn."""
    chance, found, tries = Random(f"groups {seed}"), [], 0
    while len(found) < count:
        collective = ALL[tries % len(ALL)]
        tries += 1
        kind = chance.choice(kinds_of(collective))
        spec = Spec(collective, kind, chance.choice(conditions_of(collective, kind)))
        if spec.name not in found:
            found.append(spec.name)
    return found


@cache
def _device() -> Device:
    from conformance.checks.child import use_copier
    from conformance.run.fork_client import ForkServer
    from devices import registry
    from opinfo.device import open_device

    use_copier(ForkServer(dict(os.environ)))
    return open_device(registry.load_file(measure.DESCRIPTOR))


@cache
def _cases() -> tuple[BehaviourCase, ...]:
    """The cases, those of plan quick first."""
    return tuple(measure.cases(*measure.CLAUSES))


def _reaching(spec: Spec, say: Callable[[], None]) -> list[BehaviourCase]:
    """The cases that reach a mutant, those of plan quick first, and of these the ones that are named after the collective."""
    found = _reached_by_case(say)
    reaching = [case for case in _cases() if spec.name in found[case.id]]
    return sorted(reaching, key=lambda case: (case.more, not case.name.startswith(spec.collective)))


_table: dict[str, set[str]] = {}


def _reached_by_case(say: Callable[[], None]) -> dict[str, set[str]]:
    """The mutants that each case reaches, found once for this process."""
    if not _table:
        _table.update(group_reach.table(_device(), _cases(), say))
    return _table


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Tries a mutant with the cases that reach it: those of plan quick, then those of plan core."""
    spec = Spec(*name.split("|"))
    about = f"distributed{number:04d}", "distributed", spec.collective, spec.condition, spec.kind
    result = Result(*about, "")
    tell(result)
    device, reaching = _device(), _reaching(spec, lambda: tell(result))
    result.reached = len(reaching)
    message = ""

    def red(mutated: bool, cases: Sequence[BehaviourCase]) -> bool:
        nonlocal message
        os.environ[ENVIRONMENT] = name if mutated else "sound"
        found = Outcome.PASS
        for case in cases:
            tell(result)
            found, message = measure.outcome(case, device)
        return found is not Outcome.PASS

    # Which call was the one before depends on the cases that run.
    others = [case for case in _cases() if case not in reaching] if spec.kind == EARLIER else []
    history: list[BehaviourCase] = []
    for case in (*reaching, *others):
        if red(True, [case]):
            note = f"{case.id}: {message}"[:300]
            if not is_cause(red, case, history):
                result.unsteady.append(case.id)
            elif result.credit([case.clause], "core" if case.more else "quick"):
                result.note = note
                return result
        if spec.kind == EARLIER:
            history.append(case)
    result.trying = PROBING
    tell(result)
    answer = observed(spec, lambda: tell(result))
    if answer == "equal":
        result.result = "equivalent"
    elif not result.not_gating:
        result.result = result.missed()
        result.note = "" if answer == "different" else "the probe does not run the mutated code"
    return result


# -- equivalent or not


def observed(
    spec: Spec, say: Callable[[], None] = lambda: None
) -> Literal["different", "equal", "not run"]:
    """Whether a call of the probe can tell the mutant from the group without a fault; ``not run`` if no call of the probe runs
    the mutated code, so that the probe cannot say."""
    if spec.kind in (*REDUCTIONS, *ROOTS):
        return "different"
    collective = "send_receive" if spec.collective == "receive" else spec.collective
    reached = _reached_by_probe(collective)
    if not {*group_reach.places_of(spec)} & reached:
        return "not run"
    if spec.name not in reached:
        return "equal"
    say()
    sound = _probed(collective)
    say()
    os.environ[ENVIRONMENT] = spec.name
    try:
        return "equal" if sound == _answers(collective) else "different"
    except CheckFailed:  # on a rank with the mutant
        return "different"


def _answers(collective: str) -> list[object]:
    """What the probe finds on each rank."""
    where = DeviceLocator(path=str(measure.DESCRIPTOR))
    context = CaseContext(_device(), "probe", where=where)
    return [each.value for each in context.pooled(probe, collective, ranks=2, seconds=250.0)]


@cache
def _reached_by_probe(collective: str) -> frozenset[str]:
    """The mutants that change something in some call of the probe, whether or not a rank can see it, and the places of faults
    (``group_reach.places_of``) that the probe runs."""
    with group_reach.collected() as folder:
        _answers(collective)
        return frozenset(name for _, name in group_reach.read_notes(folder))


@cache
def _probed(collective: str) -> list[object]:
    """What the probe finds without a fault."""
    os.environ[ENVIRONMENT] = "sound"
    found = _answers(collective)
    if not all(found):
        raise RuntimeError(f"the probe of {collective} found nothing on some rank: {found}")
    if _answers(collective) != found:
        raise RuntimeError(f"the probe of {collective} differs from call to call without a mutant")
    return found


def _with_signs(x: Tensor, turn: int) -> Tensor:
    """The same magnitudes, every third element negative: on turn 1 from the second one on, on turn 2 from the first one on, so
    that a single element is negative once. Zeros, NaN, and dtypes without a sign stay as they are."""
    if x.dtype is torch.bool or not x.dtype.is_signed:
        return x
    places = torch.arange(x.numel()).view(x.shape)
    negative = (x.real if x.is_complex() else x) < 0
    wrong = ((places + turn) % 3 == 2) != negative
    return torch.where(wrong & (x != 0) & (x == x), -x, x)


#: How the probe changes the operands of a collective: other sizes and numbers of dimensions, and other dtypes.
_SHAPES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    lambda x: x.flatten(),
    lambda x: x[:, :1, :1, :1],
    lambda x: x[..., :1].flatten()[: x.shape[0]],
    lambda x: x[:, :, :1, :1],
    lambda x: x[::4, :, :1],
    lambda x: x[::4, :1, :1, :1].flatten(),
    lambda x: x.repeat(1, 1, 1, 50),
)
_VALUES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x * 0.37,
    lambda x: (x * 0.37).double() * (1 + 2.0**-30),
    lambda x: x.long() * (2**44 + 1),
    lambda x: (x.fmod(50) * 1.0078125).bfloat16(),
    lambda x: (x.fmod(50) * 1.126).half(),
    lambda x: torch.complex(x, -x),
)
_VIEWS = ("contiguous", "offset", "stepped", "padded", "transposed", "channels_last")


def probe(context: CaseContext, name: str) -> str:
    """The results of a collective for operands of many layouts, dtypes and sizes, and for each root, as a digest, on this rank.
    Every call is made twice, with other values."""
    ranks, digest = join(context), hashlib.blake2b()
    roots = range(ranks.count) if name in ROOTED else (ranks.count - 1,)
    for root in roots:
        rooted = ROOTED.get(name)
        collective = COLLECTIVES[name] if rooted is None else rooted(lambda count, root=root: root)
        for text in _probe_one(ranks, collective):
            digest.update(text)
    if name.startswith("all_to_all"):
        for text in _probe_uneven(ranks, name):
            digest.update(text)
    return digest.hexdigest()


def _probe_one(ranks: Ranks, collective: Collective) -> Iterator[bytes]:
    about = (ranks.index, ranks.count, Views())
    for shape in _SHAPES:
        for value in _VALUES:
            for view in _VIEWS:
                for turn in (1, 2):
                    made = [
                        [put(ranks, value(_with_signs(shape(x * turn), turn)), view) for x in given]
                        for given in (
                            collective.inputs(*about) if collective.inputs is not None else [],
                            collective.outputs(*about),
                        )
                    ]
                    operands = [[x.tensor for x in each] for each in made]
                    refused = ranks.attempt(partial(collective.call, ranks, *operands))
                    yield refused[:40].encode()
                    undefined = [want is None for want in collective.wanted(*about)]
                    for place, each in enumerate((*made[1], *made[0])):
                        if place < len(undefined) and undefined[place]:  # its values, not its bytes
                            yield str(each.guarded.outside_intact()).encode()
                        else:
                            held = each.guarded.guarded.bytes_now(ranks.context.from_device)
                            yield bytes(held.tolist())
                if refused:  # in every view
                    break


def _probe_uneven(ranks: Ranks, name: str) -> Iterator[bytes]:
    """Each rank sends some elements to the other one and none to itself."""
    other = 1 - ranks.index
    for count in (1, 3):
        for value in _VALUES:
            for view in _VIEWS:
                for turn in (1, 2):
                    numbers = torch.arange(1.0, count + 1) * turn + 100 * ranks.index
                    given = put(ranks, value(_with_signs(numbers, turn)), view)
                    target = put(ranks, value(torch.zeros(count)), view)
                    sizes = [count * (rank == other) for rank in range(2)]
                    if name == "all_to_all_single":
                        call = partial(
                            dist.all_to_all_single, target.tensor, given.tensor, sizes, sizes
                        )
                    else:
                        call = partial(
                            dist.all_to_all,
                            [*target.tensor.split(sizes)],
                            [*given.tensor.split(sizes)],
                        )
                    yield ranks.attempt(call)[:40].encode()
                    held = target.guarded.guarded.bytes_now(ranks.context.from_device)
                    yield bytes(held.tolist())
