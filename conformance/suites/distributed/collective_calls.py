"""A table of the collectives of torch.distributed: the operands of each, and the values that each rank must receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from conformance.checks.cases.layouts import DENSE
from conformance.suites.distributed.groups import Ranks
from conformance.suites.distributed.views import blank, numbers, shown

Tensors = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Views:
    """The names of the views in which the operands of a collective are stored, the dtype of their values, and the
    number by which the values of inputs are multiplied. For a collective that works in place, inputs and outputs are
    the same tensor."""

    inputs: str = DENSE
    outputs: str = DENSE
    values: str = "float32"
    times: int = 1

    @property
    def dtype(self) -> str:
        """The dtype of all operands: a complex one if an operand is a conjugate view."""
        return "complex64" if "conjugate" in (self.inputs, self.outputs) else self.values


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. ``inputs`` and ``outputs`` return the values that the operands have before the call, and
    ``wanted`` returns the values of the outputs after the call, with None for an output whose values are undefined. All
    three functions take this rank, the number of ranks, and the views.

    ``call(ranks, inputs, outputs)`` makes the call. A collective without ``inputs`` works in place.
    """

    call: Callable[[Ranks, Tensors, Tensors], object]
    outputs: Callable[[int, int, Views], Tensors]
    wanted: Callable[[int, int, Views], Sequence[torch.Tensor | None]]
    inputs: Callable[[int, int, Views], Tensors] | None = None


def named(new: str, old: str) -> Any:
    """Returns the function of torch.distributed that is called ``new`` since torch 2.13 and was called ``old``
    before."""
    return getattr(dist, new, None) or getattr(dist, old)


def root_of(count: int) -> int:
    """Returns the rank that is the root of collectives such as broadcast. It is the last rank, because a backend could
    wrongly use rank 0."""
    return count - 1


def peers(index: int, count: int) -> tuple[int, int]:
    """Returns the rank to which rank ``index`` sends, and the rank from which it receives."""
    return (index + 1) % count, (index - 1) % count


def first(count: int) -> int:
    """Returns rank 0, the second rank (beside ``root_of``) that is tried as the root of collectives such as
    broadcast."""
    return 0


#: Returns the root of a number of ranks.
Root = Callable[[int], int]


def _values(rank: int, views: Views, part: int = 0) -> torch.Tensor:
    return numbers(rank, part=part, dtype=views.dtype, times=views.times)


def _own(rank: int, count: int, views: Views) -> Tensors:
    return [_values(rank, views)]


def _from(rank: int, views: Views) -> torch.Tensor:
    """Returns the values of a rank's input as a reader of its view sees them, for a collective to which each rank
    passes one input."""
    return shown(_values(rank, views), views.inputs)


def _part(rank: int, part: int, views: Views) -> torch.Tensor:
    """Returns the values of a rank's input number ``part`` as a reader of its view sees them, for a collective to
    which each rank passes one input for every rank."""
    return shown(_values(rank, views, part), views.inputs)


def _parts(rank: int, count: int, views: Views) -> Tensors:
    return [_values(rank, views, part) for part in range(count)]


def _rows(rank: int, count: int, views: Views) -> Tensors:
    return [torch.cat(_parts(rank, count, views))]


def _rows_shown(rank: int, count: int, views: Views) -> torch.Tensor:
    """Returns the elements of a rank's input as a reader of its view sees them, for a collective whose input has the
    rows for all ranks in one tensor."""
    return shown(_rows(rank, count, views)[0], views.inputs)


def _rows_for(rank: int, to: int, count: int, views: Views) -> torch.Tensor:
    """Returns the rows for rank ``to`` in the input of ``rank``, for a collective whose input has the rows for all
    ranks in one tensor."""
    return _rows_shown(rank, count, views).chunk(count)[to]


def _one_blank(rank: int, count: int, views: Views) -> Tensors:
    return [blank(views.dtype)]


def _blanks(rank: int, count: int, views: Views) -> Tensors:
    return [blank(views.dtype) for _ in range(count)]


def _blank_rows(rank: int, count: int, views: Views) -> Tensors:
    return [blank(views.dtype, rows=count)]


def _total(of: Callable[[int], torch.Tensor], count: int) -> torch.Tensor:
    return torch.stack([of(rank) for rank in range(count)]).sum(0)


def _sum_in_place(rank: int, count: int, views: Views) -> Tensors:
    return [_total(lambda each: _from(each, views), count)]


def _reduce(root: Root) -> Collective:
    def wanted(rank: int, count: int, views: Views) -> Sequence[torch.Tensor | None]:
        return _sum_in_place(rank, count, views) if rank == root(count) else [None]

    return Collective(
        lambda ranks, _, out: dist.reduce(out[0], root(ranks.count)),
        _own,
        wanted,
    )


def _broadcast(root: Root) -> Collective:
    return Collective(
        lambda ranks, _, out: dist.broadcast(out[0], root(ranks.count)),
        _own,
        lambda rank, count, views: [_from(root(count), views)],
    )


def _gather(root: Root) -> Collective:
    def wanted(rank: int, count: int, views: Views) -> Tensors:
        if rank != root(count):
            return _blanks(rank, count, views)
        return [_from(each, views) for each in range(count)]

    return Collective(
        lambda ranks, given, out: dist.gather(
            given[0], _list_of(root, ranks, out), root(ranks.count)
        ),
        _blanks,
        wanted,
        _own,
    )


def _scatter(root: Root) -> Collective:
    return Collective(
        lambda ranks, given, out: dist.scatter(
            out[0], _list_of(root, ranks, given), root(ranks.count)
        ),
        _one_blank,
        lambda rank, count, views: [_part(root(count), rank, views)],
        _parts,
    )


def _list_of(root: Root, ranks: Ranks, tensors: Tensors) -> Tensors | None:
    """Returns the list of tensors for a collective with a root: ``tensors`` on the root, and None on the other
    ranks, which must not pass a list."""
    return tensors if ranks.index == root(ranks.count) else None


def _send_and_receive(ranks: Ranks, inputs: Tensors, outputs: Tensors) -> None:
    to, source = peers(ranks.index, ranks.count)
    if ranks.index % 2:  # a blocking send may wait for its receive
        dist.recv(outputs[0], source)
        dist.send(inputs[0], to)
    else:
        dist.send(inputs[0], to)
        dist.recv(outputs[0], source)


def _exchange_batched(ranks: Ranks, inputs: Tensors, outputs: Tensors) -> None:
    to, source = peers(ranks.index, ranks.count)
    calls = [dist.P2POp(dist.isend, inputs[0], to), dist.P2POp(dist.irecv, outputs[0], source)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def _to_one(ranks: Ranks, inputs: Tensors, outputs: Tensors) -> None:
    """Sends all rows of every rank to one rank, by the splits of all_to_all_single."""
    rows, pair = inputs[0].shape[0], peers(ranks.index, ranks.count)
    sent, taken = ([rows * (rank == peer) for rank in range(ranks.count)] for peer in pair)
    dist.all_to_all_single(outputs[0], inputs[0], taken, sent)


ROOTED = {"broadcast": _broadcast, "reduce": _reduce, "gather": _gather, "scatter": _scatter}
"""The collectives that have a root, by name."""

COLLECTIVES = {
    "all_reduce": Collective(lambda ranks, _, out: dist.all_reduce(out[0]), _own, _sum_in_place),
    "broadcast": ROOTED["broadcast"](root_of),
    "reduce": ROOTED["reduce"](root_of),
    "all_gather": Collective(
        lambda ranks, given, out: dist.all_gather(out, given[0]),
        _blanks,
        lambda rank, count, views: [_from(each, views) for each in range(count)],
        _own,
    ),
    "all_gather_single": Collective(
        lambda ranks, given, out: named("all_gather_single", "all_gather_into_tensor")(
            out[0], given[0]
        ),
        _blank_rows,
        lambda rank, count, views: [torch.cat([_from(each, views) for each in range(count)])],
        _own,
    ),
    "gather": ROOTED["gather"](root_of),
    "scatter": ROOTED["scatter"](root_of),
    "reduce_scatter": Collective(
        lambda ranks, given, out: dist.reduce_scatter(out[0], given),
        _one_blank,
        lambda rank, count, views: [_total(lambda each: _part(each, rank, views), count)],
        _parts,
    ),
    "reduce_scatter_single": Collective(
        lambda ranks, given, out: named("reduce_scatter_single", "reduce_scatter_tensor")(
            out[0], given[0]
        ),
        _one_blank,
        lambda rank, count, views: [
            _total(lambda each: _rows_for(each, rank, count, views), count)
        ],
        _rows,
    ),
    "all_to_all": Collective(
        lambda ranks, given, out: dist.all_to_all(out, given),
        _blanks,
        lambda rank, count, views: [_part(each, rank, views) for each in range(count)],
        _parts,
    ),
    "all_to_all_single": Collective(
        lambda ranks, given, out: dist.all_to_all_single(out[0], given[0]),
        _blank_rows,
        lambda rank, count, views: [
            torch.cat([_rows_for(each, rank, count, views) for each in range(count)])
        ],
        _rows,
    ),
    "send_receive": Collective(
        _send_and_receive,
        _one_blank,
        lambda rank, count, views: [_from(peers(rank, count)[1], views)],
        _own,
    ),
    "batched_send_receive": Collective(
        _exchange_batched,
        _one_blank,
        lambda rank, count, views: [_from(peers(rank, count)[1], views)],
        _own,
    ),
}
"""The collectives by name. Inputs are integers, whose sums are exact in float32."""

VARIANTS = {
    **{name: rooted(first) for name, rooted in ROOTED.items()},
    "all_to_all_single": Collective(
        _to_one,
        _one_blank,
        lambda rank, count, views: [_from(peers(rank, count)[1], views)],
        _own,
    ),
}
"""Further calls of some of the collectives, by name: with another root, or with all rows for one rank."""
