"""Cases about process groups: the default backend, subgroups, a second group, and ranks that die or never join."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import product

import torch
import torch.distributed as dist

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.results import Result
from conformance.suites.distributed.groups import (
    REFUSALS,
    Ranks,
    backend_of,
    find,
    group_of_its_own,
    join,
)
from conformance.suites.distributed.reductions import is_declared
from devices.errors import in_a_line
from devices.failure import Kind

cases = Cases(Kind.STATE)

#: Seconds after which a group gives up in cases in which a rank is missing, and the limit of these cases: a rank that has
#: not ended by then hangs.
SHORT, LIMIT = 1.0, 25.0


def total(ranks: Ranks, values: Sequence[float], group: dist.ProcessGroup | None = None) -> object:
    """Returns the sum of this rank's values and those of all other ranks, computed on the device."""
    mine = ranks.put(torch.tensor([values[ranks.index]]))
    dist.all_reduce(mine, group=group)
    return ranks.context.from_device(mine).item()


# -- groups that work


def _default(context: CaseContext) -> None:
    with group_of_its_own(context, backend=None) as ranks:
        text = (
            "torch's default backend for the device type differs from the backend that the "
            "descriptor declares"
        )
        found = dist.get_default_backend_for_device(context.kind)
        context.same(found, backend_of(context), text)
        values = [1.0 + rank for rank in range(ranks.count)]
        text = "an all_reduce after init_process_group() without a backend gave a wrong sum"
        context.same(total(ranks, values), sum(values), text)
        config = str(dist.get_backend_config())
        text = "init_process_group() without a backend does not use the device's default"
        context.check(f"{context.kind}:{backend_of(context)}" in config, text, found=config)


@cases("distributed.backend", ranks=2)
def default(context: CaseContext) -> None:
    """init_process_group() is called without a backend. Tensors of the device are then summed by the backend that the
    descriptor declares, which must be torch's default for the device type."""
    context.pooled(_default, ranks=2)


def _check_new_groups(context: CaseContext) -> None:
    for turn in range(3):
        turned = turn == 1
        with group_of_its_own(context, turned=turned) as ranks:
            mine = ranks.count - 1 - ranks.index if turned else ranks.index
            found = dist.get_rank(), dist.get_world_size()
            context.same(
                found,
                (mine, ranks.count),
                "a new group has a wrong rank or size",
                at=f"group {turn}",
            )
            values = ranks.put(torch.full((3,), 10.0 * turn + mine))
            dist.broadcast(values, 0)
            want = torch.full((3,), 10.0 * turn)
            context.equal(
                values,
                want,
                "a collective of a later group gave the values of an earlier group",
                f"group {turn}",
            )
        context.check(
            not dist.is_initialized(), ("a group still exists after destroy_process_group()")
        )
    text = "a collective without a group did not raise an exception"
    context.raises(REFUSALS, dist.all_reduce, ranks.put(torch.ones(1)), text=text)


@cases("distributed.backend", ranks=2)
@cases(
    "distributed.backend", ranks=4, over={"init_again": ()}, variants={"4 ranks": (4,)}, more=True
)
def init_again(context: CaseContext, count: int = 2) -> None:
    """A group of all ranks is created, used and destroyed three times; the second time, the ranks are in reverse order.
    Each group has the right ranks and gives the right values. After the last group is destroyed, collectives raise."""
    context.pooled(_check_new_groups, ranks=count)


def subsets(count: int) -> list[list[int]]:
    """Returns the ranks of three groups: the last rank alone, all ranks in another order, and every second rank."""
    found = [[count - 1], [*range(count)][::-1]]
    return [*found, [*range(0, count, 2)], [*range(1, count, 2)]] if count > 2 else found


def _reduces_alone(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """Reductions in a group of one rank return what the rank gives (NVIDIA/nccl#1950)."""
    context = ranks.context
    for name, dtype in product(("SUM", "AVG", "PRODUCT", "MIN", "MAX"), ("float32", "bfloat16")):
        if dtype not in context.descriptor.dtypes:
            continue
        mine = torch.arange(-9, 10).to(getattr(torch, dtype))
        there, operation = ranks.put(mine.clone()), getattr(dist.ReduceOp, name)
        at = f"all_reduce, {name} of {dtype}"
        try:
            dist.all_reduce(there, operation, group)
            context.settle()
        except REFUSALS as error:
            text = "a reduction that the descriptor declares was refused in a group of one rank"
            context.check(
                not is_declared(context, name, dtype), text, found=in_a_line(error), at=at
            )
        else:
            context.equal(there, mine, "a reduction of one rank changed its values", at)


def _subgroups(context: CaseContext) -> None:
    ranks = join(context)
    values = [2.0**rank for rank in range(ranks.count)]
    groups = [(members, dist.new_group(members)) for members in subsets(ranks.count)]
    for members, group in groups:
        if ranks.index not in members:
            continue
        at = f"members {members}"
        found = dist.get_group_rank(group, ranks.index), dist.get_world_size(group)
        want = sorted(members).index(ranks.index), len(members)
        context.same(found, want, "a subgroup has a wrong rank or size", at=at)
        wanted = sum(values[each] for each in members)
        context.same(
            total(ranks, values, group),
            wanted,
            ("an all_reduce in a subgroup gave a wrong sum"),
            at=at,
        )
        sent = ranks.put(torch.tensor([values[ranks.index]]))
        dist.broadcast(sent, members[-1], group=group)
        text = "a broadcast in a subgroup did not send the values of the right rank"
        context.equal(sent, torch.tensor([values[members[-1]]]), text, at)
        if len(members) == 1:
            _reduces_alone(ranks, group)
    text = "the group of all ranks gave a wrong sum after its subgroups were used"
    context.same(total(ranks, values), sum(values), text)
    for members, group in groups:
        if ranks.index in members:
            dist.destroy_process_group(group)
    text = "the group of all ranks gave a wrong sum after its subgroups were destroyed"
    context.same(total(ranks, values), sum(values), text)


@cases("distributed.backend", ranks=2)
@cases(
    "distributed.backend", ranks=4, over={"subgroups": ()}, variants={"4 ranks": (4,)}, more=True
)
def subgroups(context: CaseContext, count: int = 2) -> None:
    """Some ranks form subgroups. Collectives of a subgroup use the values of its members only. The group of all ranks
    works while the subgroups exist and after they are destroyed."""
    context.pooled(_subgroups, ranks=count)


def _objects(context: CaseContext) -> None:
    ranks = join(context)
    mine = {"rank": ranks.index, "name": "x" * (10 * ranks.index)}
    expected = [{"rank": rank, "name": "x" * (10 * rank)} for rank in range(ranks.count)]
    gathered: list[object] = [None] * ranks.count
    dist.all_gather_object(gathered, mine)
    context.same(gathered, expected, "all_gather_object gave other objects")
    sent: list[object] = [mine, [ranks.index]]
    dist.broadcast_object_list(sent, ranks.count - 1, device=ranks.device)
    want = [expected[-1], [ranks.count - 1]]
    context.same(sent, want, "broadcast_object_list gave other objects")
    dist.barrier()


@cases("distributed.backend", ranks=2)
def objects(context: CaseContext) -> None:
    """Python objects of different sizes are gathered and broadcast over the device. All ranks receive equal objects."""
    context.pooled(_objects, ranks=2)


# -- ranks that are missing


def _gives_up(ranks: Ranks, call: Callable[[], object]) -> str:
    """Makes a call that cannot finish because another rank is missing, then leaves the group. Returns the message of
    the exception that the call raised; an empty string if it raised none."""
    said = ""
    try:
        call()
        ranks.context.settle()
    except REFUSALS as error:
        said = f"{type(error).__name__}: {error}"
    ranks.leave()
    return said


def _summed(ranks: Ranks) -> None:
    values = ranks.put(torch.ones(4))
    dist.all_reduce(values)
    ranks.context.from_device(values)


def _is_killed(context: CaseContext) -> str:
    ranks = find(context)
    ranks.begin(timeout=20 * SHORT)
    _summed(ranks)
    ranks.exchange()
    if ranks.index == ranks.count - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _gives_up(ranks, lambda: _summed(ranks))


def _is_absent(context: CaseContext) -> str:
    ranks = find(context)
    ranks.begin(timeout=SHORT)
    _summed(ranks)
    said = ""
    if ranks.index != ranks.count - 1:
        said = _gives_up(ranks, lambda: _summed(ranks))
    ranks.exchange()
    return said


def _is_stopped(context: CaseContext) -> str:
    ranks = find(context)
    ranks.begin(timeout=SHORT)
    _summed(ranks)
    last = int(ranks.exchange(str(os.getpid()))[-1])
    if ranks.index == ranks.count - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return ""
    said = _gives_up(ranks, lambda: _summed(ranks))
    if ranks.index == 0:
        os.kill(last, signal.SIGCONT)
    return said


def _never_joins(context: CaseContext) -> str:
    ranks, said = find(context), ""

    def joins() -> None:
        ranks.begin(timeout=SHORT)
        _summed(ranks)

    if ranks.index != ranks.count - 1:
        said = _gives_up(ranks, joins)
    ranks.exchange()
    return said


def _refuses_alone(context: CaseContext) -> str:
    ranks = find(context)
    ranks.begin(timeout=SHORT)
    given = ranks.put(torch.ones(4))
    room = [torch.zeros_like(given) for _ in range(ranks.count)]
    wrong = ranks.index == ranks.count - 1
    said = _gives_up(ranks, lambda: dist.all_gather(room[1:] if wrong else room, given))
    ranks.exchange()
    return said


def _destroys(context: CaseContext) -> str:
    ranks = find(context)
    ranks.begin(timeout=3 * SHORT)
    _summed(ranks)
    if ranks.index != ranks.count - 1:
        values = ranks.put(torch.ones(4))
        work = dist.all_reduce(values, async_op=True)
        dist.destroy_process_group()
        del work
    ranks.exchange()
    return "left"


def _check_ended(context: CaseContext, results: Sequence[Result], text: str) -> None:
    """Checks that each of the ``results`` of ranks is the message of an exception. A backend may instead end the
    process, if it prints a reason. ``text`` is the message of the failure."""
    for result in results:
        context.note_death(result)
        stopped = not result.answered and result.ended.status is not None
        if stopped and result.ended.last_line:
            context.check(True, text)
            context.note(f"the process of a waiting rank {result.ended}")
            continue
        found = result.raised or result.value or ("" if result.answered else result.ended.how)
        context.check(
            result.value,
            text,
            expected="an exception within the time limit",
            found=found or "the call returned",
            kind=Kind.ENDED,
            at=f"rank {result.rank}",
        )


@cases(
    "distributed.backend",
    ranks=2,
    over={"killed_rank": ("_is_killed",), "absent_rank": ("_is_absent",)},
)
@cases(
    "distributed.backend",
    ranks=2,
    over={
        "stopped_rank": ("_is_stopped",),
        "rank_that_never_joins": ("_never_joins",),
        "refused_by_one_rank": ("_refuses_alone",),
        "destroyed_while_waiting": ("_destroys",),
    },
    more=True,
)
@cases(
    "distributed.backend",
    ranks=4,
    over={"killed_rank": ("_is_killed",), "absent_rank": ("_is_absent",)},
    variants={"4 ranks": (4,)},
    more=True,
)
def missing(context: CaseContext, function: str, count: int = 2) -> None:
    """The last rank is killed or stopped, does not take part in a collective, never joins the group, or is the only
    rank that refuses a call. The calls of the other ranks must raise within the time limit. So must a collective
    whose group is destroyed while the collective waits."""
    results = context.children(
        globals()[function], ranks=count, seconds=LIMIT, lost=tuple(range(count))
    )
    waiting = results if function == "_refuses_alone" else results[:-1]
    _check_ended(
        context,
        waiting,
        ("a rank that waits for a missing rank got no exception within the time limit"),
    )
