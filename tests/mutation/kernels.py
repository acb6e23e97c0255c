"""Mutants of kernels: drawn from a seed over all ops of the database, and tried."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from random import Random
from typing import Any, Final

import msgspec
import torch

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites import planned_cases
from opinfo.catalog import catalogue
from opinfo.compare import replace_tensors, tensors_of
from opinfo.exceptions import op_family
from opinfo.samples import Sample, choose, draw
from tests.mutation.conditions import AXES, Facts
from tests.mutation.effects import OWN, drawn
from tests.mutation.items import device, dtypes_of, is_refused, not_gating, subject
from tests.mutation.probe import observable
from tests.planting.calls import Effect, KernelCall
from tests.planting.places import overload_of, planted
from tests.planting.seen import Seen

#: Overloads that every call needs: a mutant of one would be a mutant of the whole device.
TOOLS = frozenset(
    {
        *(
            "empty.memory_format",
            "empty_strided",
            "copy_",
            "_to_copy",
            "_copy_from",
            "fill_.Scalar",
        ),
        *(
            "resize_",
            "set_.source_Storage_storage_offset",
            "_local_scalar_dense",
            "zero_",
            "detach",
        ),
        *("_copy_from_and_resize", "as_strided", "alias", "_reshape_alias", "view", "clone"),
        *("uniform_", "random_.from", "normal_", "expand", "slice.Tensor", "select.int", "item"),
        *("unsqueeze", "squeeze.dim", "permute", "t", "transpose.int", "ones_like", "zeros_like"),
        *(
            "empty_like",
            "full",
            "zeros",
            "scalar_tensor",
            "arange",
            "arange.start_step",
            "resolve_conj",
        ),
    }
)


#: What is tried while a probe decides whether a mutant is equivalent: a mutant that ends the process then was noticed by no cell.
PROBING: Final = "the probe"


class Result(msgspec.Struct):
    """What became of a mutant.

    ``result`` is

    - ``noticed``: the gate turned red;
    - ``not_gated``: cells turned red, but only cells of clauses that do not gate;
    - ``survived``: calls of the suite reached the mutant, and no cell turned red;
    - ``not_reached``: no call of the suite reached the mutant;
    - ``equivalent``: no call can tell the mutant from the original;
    - ``broken``: the mutant could not be tried, which is a mistake of this tool.

    ``unsteady`` names cells that were red with the mutant, but also without it or not again with it. They do not count.
    """

    id: str
    family: str
    op: str
    axis: str
    kind: str
    result: str
    by: list[str] = []  # the gating clauses that turned red
    not_gating: list[str] = []  # the clauses that turned red and do not gate
    plan: str = ""
    reached: int = 0
    note: str = ""
    trying: str = ""  # the clause of the case that runs while the mutant is tried
    unsteady: list[str] = []

    def missed(self) -> str:
        """The result of a live mutant that no cell noticed."""
        return "survived" if self.reached else "not_reached"

    def credit(self, clauses: Iterable[str], plan: str = "quick") -> bool:
        """Note that cells of these clauses turned red; returns whether the gate did."""
        for clause in clauses:
            row = self.not_gating if clause in not_gating() else self.by
            if clause not in row:
                row.append(clause)
        if self.by:
            self.result, self.plan = "noticed", plan
        elif self.not_gating:
            self.result, self.plan = "not_gated", self.plan or plan
        return bool(self.by)


def family_of(op: str) -> str:
    return op_family(op, catalogue()[op].ufunc)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault in front of the overloads of one packet of an op."""

    id: str
    op: str
    axis: str
    kind: str
    overloads: tuple[str, ...]
    effect: Effect

    @property
    def family(self) -> str:
        return family_of(self.op)


def ops_of(seed: int, count: int, family: str | None) -> list[str]:
    """The ops of mutants 0 to count - 1. Each op comes once, in an order drawn from the seed, before any comes again."""
    known = [op for op in catalogue() if family in (None, family_of(op))]
    known = [op for op in known if dtypes_of(op, "core")]
    rng, found = Random(seed), []
    while len(found) < count and known:
        found += rng.sample(known, len(known))
    return found[:count]


@lru_cache(maxsize=4)
def seen_of(op_id: str) -> dict[str, list[KernelCall]]:
    """The calls that reach the device's kernels, by overload, for all forms of an op."""
    op, seen = catalogue()[op_id], Seen()
    dtype = dtypes_of(op_id, "core")[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for sample in choose(draw(op, dtype), 8):
            try:
                args, kwargs = on_device(sample)
                with seen:
                    result = op.function(*args, **kwargs)
            except Exception:  # the device refuses it
                continue
            if op.inplace is not None:
                args, kwargs = on_device(sample)
                _tried(seen, op.inplace, args, kwargs)
            if op.has_out and tensors_of(result):
                args, kwargs = on_device(sample)
                _tried(
                    seen, op.function, args, {**kwargs, "out": replace_tensors(result, torch.clone)}
                )
    return seen.calls


def on_device(sample: Sample) -> Any:
    """New arguments for a sample, on the device."""
    there = device().torch_device
    return sample.call.on([t.clone().to(there) for t in sample.tensors], there)


def _tried(seen: Seen, function: Any, args: Any, kwargs: Any) -> None:
    try:
        with seen:
            function(*args, **kwargs)
    except Exception:  # no such form
        pass


def targets_of(op_id: str) -> list[tuple[str, ...]]:
    """The overloads that the op reaches, by packet.

    Overloads that every op needs are left out, unless the op reaches no others.
    """
    found = list(seen_of(op_id))
    own = [name for name in found if name not in TOOLS] or found
    packets: dict[str, list[str]] = {}
    for name in own:
        packets.setdefault(name.partition(".")[0].rstrip("_"), []).append(name)
    return [tuple(sorted(names)) for names in packets.values()]


def named_targets(op_id: str) -> list[tuple[str, ...]]:
    """The targets whose name is the op's own name."""
    name = op_id.rpartition("nn.functional.")[2].partition(".")[0]
    packets = targets_of(op_id)
    return [each for each in packets if name in each[0] or each[0].partition(".")[0] in op_id]


def facts_of(op_id: str, overloads: tuple[str, ...]) -> Facts:
    calls = [call for name in overloads for call in seen_of(op_id)[name]]
    return facts_of_calls(calls, tuple(dtypes_of(op_id, "core")))


def facts_of_calls(calls: Sequence[KernelCall], dtypes: tuple[str, ...]) -> Facts:
    """What calls of the same packet show about its overloads."""
    most = max(calls, key=lambda call: (len(call.read), len(call.operands)))
    arguments, dims = [], []
    for call in calls:
        for a in call.schema.arguments:
            value = call.values[a.name]
            if tensors_of(value) or str(a.type).startswith(
                ("Tensor", "Optional[Tensor", "List[Tensor")
            ):
                continue
            if a.name not in ("dtype", "layout", "device", "pin_memory", "memory_format"):
                arguments.append(a.name)
                if a.name in ("dim", "dims", "axis", "dim0"):
                    dims.append(a.name)
    kinds = [o.tensor.dtype for o in most.read]
    tags = {tag for call in calls for tag in call.function.tags}
    return Facts(
        operands=min(max(len(call.operands) for call in calls), 4),
        reads=min(len(most.read), 4),
        forms=frozenset(call.form for call in calls),
        outputs=max(
            len([r for r in call.schema.returns if "Tensor" in str(r.type)]) for call in calls
        ),
        view=any(call.is_view for call in calls),
        random=torch.Tag.nondeterministic_seeded in tags,
        arguments=tuple(dict.fromkeys(arguments)),
        indices=tuple(
            n for n, d in enumerate(kinds[:4]) if d == torch.int64 and len(set(kinds)) > 1
        ),
        floating=tuple(n for n, d in enumerate(kinds[:4]) if d.is_floating_point),
        dtypes=dtypes,
        dims=tuple(dict.fromkeys(dims)),
        updates=any("running" in name for call in calls for name in call.values),
        long=any(n > 1 for call in calls for o in call.operands for n in o.tensor.shape),
        types=frozenset(str(a.type) for call in calls for a in call.schema.arguments),
    )


def breed(seed: int, number: int, op_id: str) -> Mutant | None:
    """The mutant of this number, the same each time. None if the op reaches no kernel of the device."""
    rng = Random(f"{seed} {number} {op_id}")
    packets, named = targets_of(op_id), named_targets(op_id)
    if not packets:
        return None
    # Mostly the kernel that has the op's own name: operands of others are often of nobody else's.
    overloads = rng.choice(named if named and rng.random() < 0.75 else packets)
    found = drawn_fault(facts_of(op_id, overloads), rng)
    if found is None:
        return None
    axis, kind, effect = found
    return Mutant(name_of(number), op_id, axis, kind, overloads, effect)


def drawn_fault(facts: Facts, rng: Random) -> tuple[str, str, Effect] | None:
    """A fault for overloads: its axis, its kind and its effect. None if no kind fits them."""
    axes = rng.sample(sorted({*AXES, *OWN}), len({*AXES, *OWN}))
    for axis in axes:
        made: tuple[str, Effect] | None = None
        ways = [*OWN.get(axis, [])] + ([None] if axis in AXES else [])
        for way in rng.sample(ways, len(ways)):
            if way is not None:
                made = way(facts, rng)
            elif (condition := AXES[axis](facts, rng)) is not None:
                made = next(islice(drawn(facts, rng, condition), 1), None)
                if made is not None:
                    made = f"{made[0]}; {condition[0]}", made[1]
            if made is not None:
                break
        if made is not None:
            return axis, *made
    return None


def name_of(number: int) -> str:
    return f"k{number:04d}"


def result_of(mutant: Mutant) -> Result:
    """The result of a mutant that has not been tried yet."""
    kind = f"{'/'.join(mutant.overloads)}: {mutant.kind}"
    return Result(mutant.id, mutant.family, mutant.op, mutant.axis, kind, "")


def tried(seed: int, number: int, op_id: str, bred: Callable[[Result], None]) -> Result:
    """Breed a mutant and try it. Calls ``bred`` with the mutant before trying it, as it may end the process."""

    def again() -> Mutant | None:
        return breed(seed, number, op_id)

    mutant = again()
    if mutant is None:
        why = "no kernel of the device is called"
        return Result(name_of(number), family_of(op_id), op_id, "none", why, "equivalent")
    bred(result_of(mutant))
    return judged(mutant, lambda: again() or mutant, Random(f"{seed} {number}"))


def drawn_at_random(overloads: Iterable[str]) -> bool:
    """Whether an overload draws random numbers. The cases of ``random`` check the numbers that are drawn."""
    return any(torch.Tag.nondeterministic_seeded in overload_of(name).tags for name in overloads)


@cache
def random_cases() -> dict[BehaviourCase, frozenset[str]]:
    """The cases of ``random`` that are not refused, with the overloads that each reaches."""
    found = {}
    for case in planned_cases(contract.load(), more=False):
        if case.clause.startswith("random.") and not case.own_process:
            with Seen() as seen:
                refused = is_refused(case)
            if not refused:
                found[case] = frozenset(seen.calls)
    return found


def noticed_by_cases(mutant: Mutant) -> tuple[list[str], int]:
    """Run the cases of ``random`` until a gating clause refuses one.

    Returns the clauses of the cases that are refused, and how often calls reached the mutant.
    """
    known, clauses = random_cases(), list[str]()
    with planted(mutant.overloads, mutant.effect) as run:
        for case, reaches in known.items():
            if reaches & {*mutant.overloads} and is_refused(case):
                clauses.append(case.clause)
                if case.clause not in not_gating():
                    break
    return clauses, run.reached


def namesakes(mutant: Mutant) -> list[str]:
    """Other ops with the name of the kernel, which a plan runs too."""
    packet = mutant.overloads[0].partition(".")[0].strip("_")
    names = []
    for op in catalogue():
        plain = op.rpartition("nn.functional.")[2]
        if packet in (plain.partition(".")[0], plain.replace(".", "_")):
            names.append(op)
    return [op for op in names if op != mutant.op and dtypes_of(op, "quick")]


def judged(mutant: Mutant, again: Callable[[], Mutant], rng: Random) -> Result:
    """Run a mutant against the items of its op: those of plan quick, then those of the other dtypes of plan core.

    If the gate stays green, a probe finds out whether the mutant can be observed at all. ``again`` breeds the mutant anew, as
    it may count its calls.
    """
    found, failures = result_of(mutant), []
    quick = dtypes_of(mutant.op, "quick")
    for dtype in dict.fromkeys([*quick, *dtypes_of(mutant.op, "core")]):
        item = subject(mutant.op, dtype)
        with planted(mutant.overloads, mutant.effect) as run:
            clauses = item.noticed()
        found.reached += run.reached
        failures += run.failures[:1]
        if found.credit(clauses, "quick" if dtype in quick else "core"):
            return found
    if drawn_at_random(mutant.overloads):
        clauses, reached = noticed_by_cases(again())
        found.reached += reached
        if found.credit(clauses):
            return found
    new, dtypes = again(), dtypes_of(mutant.op, "core")
    found.note = observable(new.overloads, new.effect, mutant.op, dtypes, rng)
    if found.note:
        found.result = found.result or ("survived" if found.reached else "not_reached")
        for other in namesakes(mutant):
            item = subject(other, dtypes_of(other, "quick")[0])  # its clean run comes first
            with planted(mutant.overloads, again().effect):
                clauses = item.noticed()
            if found.credit(clauses):
                found.note = f"by {other}"
                break
    elif found.not_gating:
        pass  # cells that do not gate tell it from the original
    elif failures and not found.reached:
        found.result, found.note = "broken", failures[0]
    else:
        found.result = "equivalent"
    return found
