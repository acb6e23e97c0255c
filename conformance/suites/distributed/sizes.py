"""Cases about sizes: empty and 0-d tensors, uneven splits, small and large tensors, and ranks that pass different sizes
or dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.distributed.collective_calls import named, peers, root_of
from conformance.suites.distributed.groups import REFUSALS, Ranks, find, join
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Tensor = torch.Tensor
#: Numbers of rows that rank ``sender`` sends to rank ``receiver``.
Splits = Callable[[int, int, int], int]

SPLITS: dict[str, Splits] = {
    "even": lambda sender, receiver, count: 2,
    "uneven": lambda sender, receiver, count: (2 * sender + receiver) % 3 + 1,
    "some_empty": lambda sender, receiver, count: (sender + receiver) % 2 * 2,
    "one_sends_nothing": lambda sender, receiver, count: 0 if sender == 0 else 2 + receiver,
    "one_receives_nothing": lambda sender, receiver, count: 0 if receiver == 0 else 1 + sender,
    "all_empty": lambda sender, receiver, count: 0,
}


def _rows(sender: int, receiver: int, rows: int) -> Tensor:
    """Returns the rows that rank ``sender`` sends to rank ``receiver``. All rows are different."""
    values = torch.arange(3.0 * rows).reshape(rows, 3)
    return values + 100 * sender + 1000 * receiver


def _splits(context: CaseContext, name: str) -> None:
    ranks, rows_of = join(context), SPLITS[name]
    index, count = ranks.index, ranks.count
    sent = [rows_of(index, other, count) for other in range(count)]
    taken = [rows_of(other, index, count) for other in range(count)]
    parts = [_rows(index, other, sent[other]) for other in range(count)]
    wanted = [_rows(other, index, taken[other]) for other in range(count)]
    given, target = ranks.put(torch.cat(parts)), ranks.put(torch.full((sum(taken), 3), -1.0))
    at = f"splits {sent}"
    text = "all_to_all_single refused valid split sizes"
    ranks.must_accept(lambda: dist.all_to_all_single(target, given, taken, sent), text, at)
    context.equal(target, torch.cat(wanted), "all_to_all_single gave wrong rows", at)
    targets = [ranks.put(torch.full((rows, 3), -1.0)) for rows in taken]
    inputs = [ranks.put(each) for each in parts]
    if not ranks.attempt(lambda: dist.all_to_all(targets, inputs)):
        for found, want in zip(targets, wanted):
            context.equal(found, want, "all_to_all gave wrong rows", at)


@cases("distributed.collectives", over={f"splits_{name}": (name,) for name in SPLITS}, ranks=2)
@cases(
    "distributed.collectives",
    over={f"splits_{name}": (name,) for name in SPLITS},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def splits(context: CaseContext, name: str, count: int = 2) -> None:
    """Ranks exchange even, uneven and empty numbers of rows with all_to_all_single and with all_to_all. Each rank
    receives the rows that the other ranks sent to it."""
    context.pooled(_splits, name, ranks=count)


def _check_uneven(
    ranks: Ranks, name: str, call: Callable[[], object], pairs: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Makes a call in which the tensors of each rank have another size. If the call is not refused, checks the
    results: each of the ``pairs`` has a result and the tensor that it must equal."""
    refused = ranks.attempt(call)
    if refused:
        ranks.context.check(
            True,
            (
                "a collective of tensors with different sizes was neither "
                "refused nor gave the right values"
            ),
        )
        ranks.context.note(f"{name} of tensors with different sizes is refused: {refused}")
    for found, want in pairs if not refused else ():
        text = "a collective of tensors with different sizes gave wrong values"
        ranks.context.equal(found, want, text, name)


def _uneven(context: CaseContext) -> None:
    ranks = join(context)
    index, count = ranks.index, ranks.count
    wanted = [_rows(rank, 0, rank + 1) for rank in range(count)]
    targets = [ranks.put(torch.zeros(rank + 1, 3)) for rank in range(count)]
    given = ranks.put(wanted[index])
    pairs = list(zip(targets, wanted))
    _check_uneven(ranks, "all_gather", lambda: dist.all_gather(targets, given), pairs)
    target = ranks.put(torch.zeros(index + 1, 3))
    inputs = [ranks.put(_rows(index, rank, rank + 1)) for rank in range(count)]
    total = torch.stack([_rows(rank, index, index + 1) for rank in range(count)]).sum(0)
    call = [(target, total)]
    _check_uneven(ranks, "reduce_scatter", lambda: dist.reduce_scatter(target, inputs), call)


def _empty(context: CaseContext) -> None:
    ranks = join(context)
    count, root = ranks.count, root_of(ranks.count)

    def none() -> Tensor:
        return ranks.put(torch.zeros(0, 3))

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(none()),
        "broadcast": lambda: dist.broadcast(none(), root),
        "reduce": lambda: dist.reduce(none(), root),
        "all_gather": lambda: dist.all_gather([none() for _ in range(count)], none()),
        "all_gather_single": lambda: named("all_gather_single", "all_gather_into_tensor")(
            none(), none()
        ),
        "reduce_scatter_single": lambda: named("reduce_scatter_single", "reduce_scatter_tensor")(
            none(), none()
        ),
    }
    for name, call in calls.items():
        ranks.must_accept(call, "a collective refused empty tensors", name)
    values = ranks.put(torch.tensor([1.0 + ranks.index]))
    dist.all_reduce(values)
    want = torch.tensor([float(sum(range(1, count + 1)))])
    context.equal(values, want, "all_reduce gave a wrong sum after collectives of empty tensors")


def _small(context: CaseContext) -> None:
    ranks = join(context)
    count = ranks.count
    scalar = ranks.put(torch.tensor(1.0 + ranks.index))
    dist.all_reduce(scalar)
    total = float(sum(range(1, count + 1)))
    context.equal(scalar, torch.tensor(total), "all_reduce of 0-d tensors gave a wrong sum")
    target = ranks.put(torch.zeros(count))
    gather = named("all_gather_single", "all_gather_into_tensor")
    if not ranks.attempt(lambda: gather(target, scalar)):
        context.equal(
            target, torch.full((count,), total), ("all_gather of 0-d tensors gave wrong values")
        )
    for name in ("SUM", "AVG"):
        operation = getattr(dist.ReduceOp, name)
        for size in (*range(1, 36), 63, 64, 65):
            values = torch.arange(float(size))
            given = ranks.put(values * count * (ranks.index + 1))
            if ranks.attempt(lambda: dist.all_reduce(given, operation)):  # noqa: B023
                context.note(f"{name} is refused")
                break
            want = values * total * (1 if name == "AVG" else count)
            text = "all_reduce of a small tensor gave wrong values"
            context.equal(given, want, text, f"{name} of {size} elements")


def _large(context: CaseContext) -> None:
    ranks = join(context)
    index, count, size = ranks.index, ranks.count, 2**18 + 3

    def values(rank: int) -> Tensor:
        return torch.arange(float(size)) % 1009 + 2000 * rank

    total = torch.stack([values(rank) for rank in range(count)]).sum(0)
    everyone = torch.cat([values(rank) for rank in range(count)])
    summed = ranks.put(values(index))
    dist.all_reduce(summed)
    context.equal(summed, total, "all_reduce of a large tensor gave wrong values")
    sent = ranks.put(values(index))
    dist.broadcast(sent, root_of(count))
    text = "broadcast of a large tensor gave wrong values"
    context.equal(sent, values(root_of(count)), text)
    gathered = ranks.put(torch.zeros(count * size))
    named("all_gather_single", "all_gather_into_tensor")(gathered, ranks.put(values(index)))
    context.equal(gathered, everyone, "all_gather of a large tensor gave wrong values")
    part = ranks.put(torch.zeros(size))
    rows = ranks.put(values(index).repeat(count))
    named("reduce_scatter_single", "reduce_scatter_tensor")(part, rows)
    context.equal(part, total, "reduce_scatter of a large tensor gave wrong values")
    exchanged = ranks.put(torch.zeros(count * size))
    dist.all_to_all_single(exchanged, rows)
    context.equal(exchanged, everyone, "all_to_all of a large tensor gave wrong values")


def _messages(context: CaseContext) -> None:
    ranks = join(context)
    to, source = peers(ranks.index, ranks.count)
    sizes = (1, 5000, 0, 3)
    sent = [ranks.put(torch.full((size,), 10.0 * ranks.index + size)) for size in sizes]
    targets = [ranks.put(torch.full((size,), -1.0)) for size in sizes]
    works = [dist.isend(each, to) for each in sent]
    works += [dist.irecv(each, source) for each in targets]
    for work in works:
        assert work is not None
        work.wait()
    for found, size in zip(targets, sizes):
        want = torch.full((size,), 10.0 * source + size)
        context.equal(
            found,
            want,
            "messages from one rank to another arrived in another order than they were sent",
            f"{size} elements",
        )


@cases(
    "distributed.collectives",
    over={
        "sizes_that_differ": ("_uneven",),
        "empty_tensors": ("_empty",),
        "small_tensors": ("_small",),
        "large_tensors": ("_large",),
        "several_messages": ("_messages",),
    },
    ranks=2,
)
@cases(
    "distributed.collectives",
    over={
        "sizes_that_differ": ("_uneven",),
        "empty_tensors": ("_empty",),
        "small_tensors": ("_small",),
    },
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def sizes(context: CaseContext, function: str, count: int = 2) -> None:
    """Collectives of empty, 0-d, small and large tensors give the right values. If each rank passes a list of tensors
    with other sizes, the values are right or the call is refused. Messages arrive in the order in which they were
    sent."""
    context.pooled(globals()[function], ranks=count)


# -- ranks that do not agree

#: Seconds after which a group gives up, and the limit of the cases in which ranks do not agree.
SHORT, LIMIT = 1.0, 25.0

DISAGREEING: dict[str, Callable[[Ranks, Tensor], object]] = {
    "all_reduce": lambda ranks, values: dist.all_reduce(values),
    "broadcast": lambda ranks, values: dist.broadcast(values, root_of(ranks.count)),
    "all_gather": lambda ranks, values: dist.all_gather(
        [torch.zeros_like(values) for _ in range(ranks.count)], values
    ),
    "all_gather_single": lambda ranks, values: named("all_gather_single", "all_gather_into_tensor")(
        torch.cat([values] * ranks.count), values
    ),
    "reduce_scatter_single": lambda ranks, values: named(
        "reduce_scatter_single", "reduce_scatter_tensor"
    )(values.clone(), torch.cat([values] * ranks.count)),
}


def _disagrees(context: CaseContext, name: str, what: str) -> None:
    ranks = find(context)
    ranks.begin(timeout=SHORT)
    dist.all_reduce(ranks.put(torch.zeros(1)))
    context.settle()
    other = ranks.index == 0
    size = 6 if what == "size" and other else 4
    dtype = torch.int32 if what == "dtype" and other else torch.float32
    values, said = ranks.put(torch.arange(size).to(dtype)), ""
    try:
        DISAGREEING[name](ranks, values)
        context.settle()
    except REFUSALS as error:
        said = str(error)
    found = "" if said else context.from_device(values).tolist()
    ranks.exchange()
    ranks.leave()
    text = f"a collective whose ranks pass tensors of another {what} raised no exception"
    context.check(said, text, expected="an exception", found=found, kind=Kind.NOT_RAISED, at=name)


@cases(
    "distributed.collectives",
    over={f"other_{what}_all_reduce": ("all_reduce", what) for what in ("dtype", "size")},
    ranks=2,
)
@cases(
    "distributed.collectives",
    over={
        f"other_{what}_{name}": (name, what)
        for what in ("dtype", "size")
        for name in DISAGREEING
        if name != "all_reduce" and (name, what) != ("all_gather", "size")
    },
    ranks=2,
    more=True,
)
def disagree(context: CaseContext, name: str, what: str) -> None:
    """Rank 0 calls a collective with another dtype or another size than the other ranks do. The call raises on all
    ranks within the time limit, and no process ends."""
    context.children(_disagrees, name, what, ranks=2, seconds=LIMIT)
