"""A process group for tensors of the CPU that is right, and faults in it, one at a time.

Every operand is copied to a contiguous tensor, gloo runs on the copies, and the results are copied back: gloo itself
ignores the strides of most operands. ``FAULTY_GROUP`` names the fault. The module is the module of a descriptor, so every
rank imports it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

ENVIRONMENT = "FAULTY_GROUP"
BACKEND = "faulty"

Tensor = torch.Tensor
Tensors = list[Tensor]


@dataclass(frozen=True)
class Mutant:
    """One fault. ``read`` and ``write`` replace the copies of an operand; ``options`` changes a call's options, and
    ``results`` the contiguous results, before they are copied back. All take the name of the collective first."""

    read: Callable[[str, Tensor], Tensor] | None = None
    write: Callable[[str, Tensor, Tensor], object] | None = None
    options: Callable[[str, Any], object] | None = None
    results: Callable[[str, Tensors, int, int], object] | None = None
    instead: Callable[[str, Tensors, Tensors, int, int], bool] | None = (
        None  # True: gloo is not called
    )
    clauses: str = "distributed.collectives"


def read_as_dense(x: Tensor) -> Tensor:
    """Returns what a kernel reads that takes the tensor for contiguous."""
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return x.as_strided(x.shape, strides, x.storage_offset())


def _last(x: Tensor) -> int:
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    return x.storage_offset() + reach


def _neighbour(x: Tensor, place: int) -> None:
    if 0 <= place < x.untyped_storage().nbytes() // x.itemsize:
        x.detach().as_strided((1,), (1,), place).zero_()


def _write_past(name: str, target: Tensor, result: Tensor) -> None:
    target.copy_(result)
    if target.numel():
        _neighbour(target, _last(target) + 1)


def _write_before(name: str, target: Tensor, result: Tensor) -> None:
    target.copy_(result)
    if target.numel():
        _neighbour(target, target.storage_offset() - 1)


def _write_gaps(name: str, target: Tensor, result: Tensor) -> None:
    target.copy_(result)
    if target.numel() and target.dim() and target.stride(-1) > 1:
        _neighbour(target, target.storage_offset() + 1)


def _only(condition: Callable[[Tensor], bool]) -> Callable[[str, Tensor, Tensor], None]:
    def write(name: str, target: Tensor, result: Tensor) -> None:
        if condition(target):
            target.copy_(result)

    return write


def _reductions(swap: dict[str, str]) -> Callable[[str, Any], None]:
    def change(name: str, options: Any) -> None:
        for old, new in swap.items():
            if getattr(options, "reduceOp", None) == getattr(dist.ReduceOp, old):
                options.reduceOp = getattr(dist.ReduceOp, new)
                return

    return change


def _of(names: str, change: Callable[[Tensors, int, int], object]) -> Callable[..., None]:
    def results(name: str, found: Tensors, rank: int, size: int) -> None:
        if name in names.split():
            change(found, rank, size)

    return results


def _each(change: Callable[[Tensor], object]) -> Callable[[Tensors, int, int], object]:
    def all_of_them(found: Tensors, rank: int, size: int) -> None:
        for each in found:
            if each.numel():
                change(each)

    return all_of_them


def _zero_last(x: Tensor) -> None:
    x.view(-1)[-1] = 0


def _as_float32(x: Tensor) -> None:
    if x.dtype in (torch.int64, torch.float64):
        x.copy_(x.float())


def _root(value: int) -> Callable[[str, Any], None]:
    def change(name: str, options: Any) -> None:
        if hasattr(options, "rootRank"):
            options.rootRank = value

    return change


def _copy_own(name: str, read: Tensors, written: Tensors, rank: int, size: int) -> bool:
    if name != "reduce_scatter" or len(read) != size:
        return False
    written[0].copy_(read[rank])
    return True


class _Remembered:
    """Replaces results of a collective in float64 by those of the call before, if these have the same shapes and dtype."""

    def __init__(self, name: str) -> None:
        self._name, self._before = name, list[Tensor]()

    def __call__(self, name: str, found: Tensors, rank: int, size: int) -> None:
        if name != self._name or not found:
            return
        now = [each.clone() for each in found]
        for each, other in zip(found, self._before):
            if each.shape == other.shape and each.dtype is other.dtype is torch.float64:
                each.copy_(other)
        self._before = now


class _AverageOfOneRank:
    """The average of a single rank in bfloat16 leaves the last eight elements zero."""

    def __init__(self) -> None:
        self._averages = False

    def options(self, name: str, options: Any) -> None:
        self._averages = getattr(options, "reduceOp", None) == dist.ReduceOp.AVG

    def results(self, name: str, found: Tensors, rank: int, size: int) -> None:
        if name in REDUCES.split() and self._averages and size == 1:
            for each in found:
                if each.dtype is torch.bfloat16:
                    each.view(-1)[-8:] = 0


_one = _AverageOfOneRank()

MOVES = "broadcast all_gather all_gather_single gather scatter all_to_all all_to_all_single receive"
REDUCES = "all_reduce reduce reduce_scatter reduce_scatter_single"
ALL = f"{MOVES} {REDUCES}"

MUTANTS: dict[str, Mutant] = {
    "sound": Mutant(),
    "raises": Mutant(read=lambda name, x: x / (1 // 0)),
    # operands
    "reads_dense": Mutant(read=lambda name, x: read_as_dense(x)),
    "reads_all_reduce_dense": Mutant(
        read=lambda name, x: read_as_dense(x) if name == "all_reduce" else x
    ),
    "reads_gather_dense": Mutant(read=lambda name, x: read_as_dense(x) if name == "gather" else x),
    "reads_scatter_dense": Mutant(
        read=lambda name, x: read_as_dense(x) if name == "scatter" else x
    ),
    "reads_sent_dense": Mutant(read=lambda name, x: read_as_dense(x) if name == "send" else x),
    "reads_lists_dense": Mutant(
        read=lambda name, x: read_as_dense(x) if name in ("reduce_scatter", "all_to_all") else x
    ),
    "reads_without_offset": Mutant(read=lambda name, x: x.as_strided(x.shape, x.stride(), 0)),
    "reads_transposed_as_rows": Mutant(
        read=lambda name, x: (
            read_as_dense(x) if x.numel() == _last(x) - x.storage_offset() + 1 else x
        )
    ),
    "reads_channels_last_as_rows": Mutant(
        read=lambda name, x: (
            read_as_dense(x)
            if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
            else x
        )
    ),
    "reads_expanded_once": Mutant(read=lambda name, x: read_as_dense(x) if 0 in x.stride() else x),
    "writes_received_dense": Mutant(
        write=lambda name, target, result: (
            read_as_dense(target) if name == "receive" else target
        ).copy_(result)
    ),
    "writes_past": Mutant(write=_write_past),
    "writes_before": Mutant(write=_write_before),
    "writes_gaps": Mutant(write=_write_gaps),
    "leaves_strided_unwritten": Mutant(write=_only(lambda x: x.is_contiguous())),
    "leaves_offset_unwritten": Mutant(write=_only(lambda x: x.storage_offset() == 0)),
    "scribbles_on_input": Mutant(
        read=lambda name, x: (
            (x.clone(), x.detach().zero_())[0] if name in ("gather", "all_to_all") else x
        )
    ),
    # reductions
    "sum_is_average": Mutant(options=_reductions({"SUM": "AVG"})),
    "average_is_sum": Mutant(options=_reductions({"AVG": "SUM"})),
    "min_is_max": Mutant(options=_reductions({"MIN": "MAX"})),
    "max_is_sum": Mutant(options=_reductions({"MAX": "SUM"})),
    "product_is_sum": Mutant(options=_reductions({"PRODUCT": "SUM"})),
    "and_is_or": Mutant(options=_reductions({"BAND": "BOR"})),
    "xor_is_or": Mutant(options=_reductions({"BXOR": "BOR"})),
    "or_is_max": Mutant(options=_reductions({"BOR": "MAX"})),
    "average_twice_if_small": Mutant(
        results=lambda name, found, rank, size: (
            [
                each.div_(size)
                for each in found
                if name == "all_reduce"
                and each.is_floating_point()
                and each.numel() in (28, 29, 30, 31)
            ]
        )
    ),
    "integers_through_float32": Mutant(results=_of(REDUCES, _each(_as_float32))),
    "bits_through_float32": Mutant(results=_of(MOVES, _each(_as_float32))),
    "bfloat16_rounds_down": Mutant(
        results=_of(
            REDUCES,
            _each(lambda x: x.dtype is torch.bfloat16 and x.view(torch.int16).sub_(1)),
        )
    ),
    "reduce_scatter_not_reduced": Mutant(instead=_copy_own),
    # places
    "root_is_0": Mutant(options=_root(0)),
    "gathered_reversed": Mutant(
        results=_of(
            "all_gather",
            lambda found, rank, size: (
                [a.copy_(b) for a, b in zip(found, [x.clone() for x in found[::-1]])]
            ),
        )
    ),
    "gathered_own_lost": Mutant(
        results=_of("all_gather gather", lambda found, rank, size: found and found[rank].zero_())
    ),
    "gathered_rows_rolled": Mutant(
        results=_of("all_gather_single", _each(lambda x: x.dim() and x.copy_(x.roll(1, 0))))
    ),
    "scattered_last_lost": Mutant(results=_of("scatter", _each(_zero_last))),
    "exchanged_own_lost": Mutant(
        results=_of("all_to_all", lambda found, rank, size: found[rank].zero_())
    ),
    "split_rows_rolled": Mutant(
        results=_of("all_to_all_single", _each(lambda x: x.copy_(x.roll(1, 0))))
    ),
    "split_last_row_lost": Mutant(
        results=_of("all_to_all_single", _each(lambda x: x[-1:].zero_()))
    ),
    "received_first_lost": Mutant(results=_of("receive", _each(lambda x: x.view(-1)[:1].zero_()))),
    # dtypes
    "reads_int64_without_offset": Mutant(
        read=lambda name, x: x.as_strided(x.shape, x.stride(), 0) if x.dtype is torch.int64 else x
    ),
    "writes_float64_dense": Mutant(
        write=lambda name, target, result: (
            read_as_dense(target) if target.dtype is torch.float64 else target
        ).copy_(result)
    ),
    "writes_past_short_floats": Mutant(
        write=lambda name, target, result: (
            _write_past(name, target, result) if target.itemsize == 2 else target.copy_(result)
        )
    ),
    "exchanges_int64_through_float64": Mutant(
        results=_of("all_to_all", _each(lambda x: x.dtype is torch.int64 and x.copy_(x.double())))
    ),
    # values and earlier calls
    "large_signs_lost": Mutant(
        results=_of("broadcast", _each(lambda x: x.numel() > 4096 and x.abs_()))
    ),
    "gathers_earlier_result": Mutant(results=_Remembered("gather")),
    "first_root_gets_too_much": Mutant(
        results=_of(
            "reduce",
            lambda found, rank, size: (
                rank == 0 and found[0].is_floating_point() and found[0].add_(1)
            ),
        )
    ),
    # sizes
    "single_gathered_element_lost": Mutant(
        results=_of("all_gather gather", _each(lambda x: x.numel() == 1 and x.zero_()))
    ),
    "single_exchanged_element_lost": Mutant(
        results=_of("all_to_all_single", _each(lambda x: x.numel() == 1 and x.zero_()))
    ),
    "single_element_kept": Mutant(
        results=_of("all_reduce", _each(lambda x: x.numel() == 1 and x.zero_()))
    ),
    "scalar_lost": Mutant(results=_of("all_reduce", _each(lambda x: x.dim() == 0 and x.zero_()))),
    "odd_tail_lost": Mutant(
        results=_of("all_reduce", _each(lambda x: x.numel() % 2 and _zero_last(x)))
    ),
    "large_tail_lost": Mutant(
        results=_of(ALL, _each(lambda x: x.numel() > 2**16 and _zero_last(x)))
    ),
    "empty_refused": Mutant(read=lambda name, x: x if x.numel() else x.view(-1).clone()[0]),
    "large_broadcast_rolled": Mutant(
        results=_of("broadcast", _each(lambda x: x.numel() > 4096 and x.copy_(x.roll(1, 0))))
    ),
    # training
    "bucket_tail_lost": Mutant(
        results=_of(
            "all_reduce", _each(lambda x: x.dim() == 1 and x.numel() > 64 and _zero_last(x))
        ),
        clauses="distributed.ddp",
    ),
    "bucket_not_reduced": Mutant(
        instead=lambda name, read, written, rank, size: (
            name == "all_reduce" and read[0].numel() in range(30, 60) and read[0].dim() == 1
        ),
        clauses="distributed.ddp",
    ),
    "gradient_sign_lost": Mutant(
        results=_of("all_reduce", _each(lambda x: x.is_floating_point() and x.abs_())),
        clauses="distributed.ddp",
    ),
    "buffers_not_sent": Mutant(
        instead=lambda name, read, written, rank, size: (
            name == "broadcast" and read[0].numel() == 3
        ),
        clauses="distributed.ddp",
    ),
    "double_bucket_in_float": Mutant(
        results=_of(
            "all_reduce",
            _each(lambda x: x.dtype is torch.float64 and x.copy_(x.bfloat16())),
        ),
        clauses="distributed.ddp",
    ),
    "shards_swapped": Mutant(
        results=_of("all_gather_single", _each(lambda x: x.dim() == 1 and x.copy_(x.flip(0)))),
        clauses="distributed.sharded",
    ),
    "padding_lost": Mutant(
        results=_of("all_gather_single", _each(_zero_last)), clauses="distributed.sharded"
    ),
    "shard_of_another_rank": Mutant(
        results=_of(
            "reduce_scatter_single",
            lambda found, rank, size: rank == 1 and found[0].zero_(),
        ),
        clauses="distributed.sharded",
    ),
    "gradient_rows_lost": Mutant(
        results=_of("all_to_all_single", _each(lambda x: x.view(-1)[:1].zero_())),
        clauses="distributed.sharded",
    ),
    "activation_lost": Mutant(
        results=_of("receive", _each(lambda x: x.view(-1)[-1:].zero_())),
        clauses="distributed.sharded",
    ),
}


#: Faults of public bugs that strike in cases of other clauses than ``measure`` runs.
OF_BUGS: dict[str, Mutant] = {
    "average of one rank": Mutant(options=_one.options, results=_one.results),
}


def _done(value: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future)


class FaultyGroup(dist.ProcessGroup):  # type: ignore[misc]
    """gloo behind contiguous copies. Calls are synchronous."""

    def __init__(self, gloo: Any, rank: int, size: int, mutant: Mutant) -> None:
        super().__init__(rank, size)
        self._gloo, self._mutant = gloo, mutant
        self._sent: list[Tensors] = []
        self._group_name = ""

    def getBackendName(self) -> str:
        return BACKEND

    def _run(
        self,
        name: str,
        read: Sequence[Tensor],
        written: Sequence[Tensor],
        call: Callable[[Tensors, Tensors], Any],
        options: Any = None,
        *,
        in_place: bool = False,
    ) -> Any:
        mutant = self._mutant
        with torch.no_grad():
            if mutant.options is not None and options is not None:
                mutant.options(name, options)
            given = [self._staged(name, each) for each in read]
            taken = given if in_place else [torch.empty(x.shape, dtype=x.dtype) for x in written]
            about = self.rank(), self.size()
            if mutant.instead is None or not mutant.instead(name, given, taken, *about):
                call(given, taken).wait()
            if mutant.results is not None:
                mutant.results(name, taken, *about)
            for target, result in zip(written, taken):
                if mutant.write is not None:
                    mutant.write(name, target.detach(), result)
                else:
                    target.detach().copy_(result)
        return _done(list(written))

    def _staged(self, name: str, x: Tensor) -> Tensor:
        seen = self._mutant.read(name, x.detach()) if self._mutant.read is not None else x.detach()
        return seen.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()

    def allreduce(self, tensors: Tensors, options: Any = None) -> Any:
        options = options or dist.AllreduceOptions()
        return self._run(
            "all_reduce",
            tensors,
            tensors,
            lambda a, b: self._gloo.allreduce(a, options),
            options,
            in_place=True,
        )

    def broadcast(self, tensors: Tensors, options: Any = None) -> Any:
        options = options or dist.BroadcastOptions()
        return self._run(
            "broadcast",
            tensors,
            tensors,
            lambda a, b: self._gloo.broadcast(a, options),
            options,
            in_place=True,
        )

    def reduce(self, tensors: Tensors, options: Any) -> Any:
        return self._run(
            "reduce",
            tensors,
            tensors,
            lambda a, b: self._gloo.reduce(a, options),
            options,
            in_place=True,
        )

    def allgather(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> Any:
        return self._run(
            "all_gather", inputs, outputs[0], lambda a, b: self._gloo.allgather([b], a)
        )

    def _allgather_base(self, output: Tensor, input: Tensor, options: Any = None) -> Any:
        return self._run(
            "all_gather_single",
            [input],
            [output],
            lambda a, b: self._gloo._allgather_base(b[0], a[0]),
        )

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any = None
    ) -> Any:
        for output, given in zip(outputs, inputs):
            self._allgather_base(output, given)
        return _done(list(outputs))

    def gather(self, outputs: list[Tensors], inputs: Tensors, options: Any) -> Any:
        targets = outputs[0] if outputs else []
        return self._run(
            "gather",
            inputs,
            targets,
            lambda a, b: self._gloo.gather([b] if outputs else [], a, options),
            options,
        )

    def scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any) -> Any:
        given = inputs[0] if inputs else []
        return self._run(
            "scatter",
            given,
            outputs,
            lambda a, b: self._gloo.scatter(b, [a] if inputs else [], options),
            options,
        )

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any) -> Any:
        return self._run(
            "reduce_scatter",
            inputs[0],
            outputs,
            lambda a, b: self._gloo.reduce_scatter(b, [a], options),
            options,
        )

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, options: Any) -> Any:
        return self._run(
            "reduce_scatter_single",
            [input],
            [output],
            lambda a, b: self._gloo._reduce_scatter_base(b[0], a[0], options),
            options,
        )

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any
    ) -> Any:
        for output, given in zip(outputs, inputs):
            self._reduce_scatter_base(output, given, options)
        return _done(list(outputs))

    def alltoall_base(
        self, output: Tensor, input: Tensor, taken: list[int], sent: list[int], options: Any = None
    ) -> Any:
        return self._run(
            "all_to_all_single",
            [input],
            [output],
            lambda a, b: self._gloo.alltoall_base(
                b[0], a[0], taken, sent, options or dist.AllToAllOptions()
            ),
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Any:
        return self._run(
            "all_to_all",
            inputs,
            outputs,
            lambda a, b: self._gloo.alltoall(b, a, options or dist.AllToAllOptions()),
        )

    def send(self, tensors: Tensors, to: int, tag: int) -> Any:
        with torch.no_grad():
            given = [self._staged("send", each) for each in tensors]
        self._sent.append(given)  # until the group ends: a send does not wait
        return self._gloo.send(given, to, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Any:
        return self._run("receive", [], tensors, lambda a, b: self._gloo.recv(b, source, tag))

    def barrier(self, options: Any = None) -> Any:
        return self._gloo.barrier(options or dist.BarrierOptions())

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    # The names since torch 2.13.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    all_to_all = alltoall


def _make(store: Any, rank: int, size: int, timeout: Any) -> Any:
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    return FaultyGroup(gloo, rank, size, _mutant(os.environ.get(ENVIRONMENT, "sound")))


def _mutant(name: str) -> Mutant:
    """The fault of this name: one of the list, a generated one (tests/mutation/group_mutants.py), or none, noting which of these
    a call reaches (tests/mutation/group_reach.py)."""
    if name in MUTANTS or name in OF_BUGS:
        return (MUTANTS | OF_BUGS)[name]
    if name == "noting":
        noting: Mutant = importlib.import_module("tests.mutation.group_reach").noting()
        return noting
    made: Mutant = importlib.import_module("tests.mutation.group_mutants").mutant_of(name)
    return made


dist.Backend.register_backend(BACKEND, _make, devices=["cpu"])
