"""Cases about tensors that are sent to another process: their strides and device, the memory that both processes share,
and when this memory is freed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import torch
import torch.multiprocessing

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.distributed.connections import (
    Peer,
    connected,
    shared_with,
    socket_folder,
)
from conformance.suites.distributed.groups import REFUSALS
from conformance.suites.distributed.views import (
    LAYOUTS,
    Operand,
    dtype_of_view,
    numbers,
    put,
    shown,
)
from devices.failure import Kind

cases = Cases(Kind.STATE)

Tensor = torch.Tensor

#: Seconds in which shared memory must be freed after the last process has let go.
FREED = 10.0


def geometry(tensor: Tensor) -> tuple[Any, ...]:
    """Returns the properties that must be the same for the sender and the receiver: shape, strides, storage offset,
    dtype and requires_grad."""
    grad = tensor.requires_grad
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, grad


def check_arrived(context: CaseContext, found: Tensor, want: Tensor, at: str = "") -> None:
    """Checks the shape, strides, offset, dtype, device and values of a received tensor. ``want`` is an equal tensor on
    the device of the receiver or on the CPU."""
    text = (
        "the shape, strides, offset, dtype or requires_grad of a tensor changed when it "
        "was sent to another process"
    )
    context.same(geometry(found), geometry(want), text, Kind.STRIDES, at)
    context.same(
        found.device,
        context.named(0),
        ("a tensor arrived in another process on another device"),
        at=at,
    )
    text = "the values of a tensor changed when it was sent to another process"
    context.equal(found.detach(), want.detach(), text, at)


# -- views


def _arrives(context: CaseContext, folder: str, view: str) -> None:
    with connected(context, folder) as peer:
        operand = put(peer.ranks, numbers(0, dtype=dtype_of_view(view)), view)
        if peer.sends:
            _send_unless_refused(peer, operand.tensor, view)
            peer.turn()
            _check_untouched(context, operand, view)
            return
        found = peer.receive()
        if isinstance(found, str):
            context.check(view == "conjugate", "a view could not be sent", found=found, at=view)
            context.note(f"sending a {view} view is refused: {found}")
        else:
            want = shown(numbers(0, dtype=dtype_of_view(view)), view)
            text = (
                "the shape, strides, offset or dtype of a view changed when it was sent to "
                "another process"
            )
            here = geometry(operand.tensor)
            context.same(geometry(found), here, text, Kind.STRIDES, view)
            context.same(
                found.device,
                context.named(0),
                ("a view arrived in another process on another device"),
            )
            context.equal(
                found,
                want,
                ("the values of a view changed when it was sent to another process"),
                view,
            )
            sizes = [each.untyped_storage().nbytes() for each in (found, operand.tensor)]
            text = "the size of a view's storage changed when it was sent to another process"
            context.same(sizes[0], sizes[1], text, Kind.STORAGE, view)
        del found
        peer.turn()


def _send_unless_refused(peer: Peer, tensor: Tensor, view: str) -> None:
    try:
        peer.send(tensor)
    except REFUSALS as error:
        peer.send(f"{type(error).__name__}: {error}")


def _check_untouched(context: CaseContext, operand: Operand, view: str) -> None:
    kept = operand.guarded.intact()
    found = "" if kept else operand.guarded.damage()
    text = "sending a view changed the view's bytes or the bytes around the view"
    context.check(kept, text, found=found, kind=Kind.BYTES, at=view)


@cases("distributed.sharing", over={f"view_{view}": (view,) for view in LAYOUTS})
def arrives(context: CaseContext, view: str) -> None:
    """A view is sent to another process. It arrives on the same device, with the same strides, offset and values, in a
    storage of the same size. The sender's bytes do not change. Sending a conjugate view may be refused."""
    shared_with(context, _arrives, view)


def _written(context: CaseContext, folder: str, view: str) -> None:
    values = numbers(0)
    with connected(context, folder) as peer:
        operand = put(peer.ranks, values, view)
        if peer.sends:
            peer.send(operand.tensor)
        here = operand.tensor if peer.sends else peer.receive()
        for turn, writes in enumerate((False, True, False, True)):
            peer.turn()
            if peer.sends is writes:
                here.add_(1)
            peer.turn()
            text = "a process does not see the values that another process wrote to a shared tensor"
            if peer.sends:
                context.equal(operand.read(), values + turn + 1, text, f"{view}, write {turn}")
                kept = operand.guarded.outside_intact()
                text = "writing to a shared view changed the bytes around the view"
                context.check(kept, text, kind=Kind.BYTES, at=view)
            else:
                context.equal(here, values + turn + 1, text, f"{view}, write {turn}")
        del here
        peer.turn()


@cases(
    "distributed.sharing",
    over={f"written_{view}": (view,) for view in ("contiguous", "stepped", "transposed")},
)
def written(context: CaseContext, view: str) -> None:
    """The receiver and the sender of a view write to the view in turn. Each sees the values that the other has written,
    and the bytes around the view do not change."""
    shared_with(context, _written, view)


# -- other tensors


def _of_every_dtype(context: CaseContext) -> list[Tensor]:
    made = []
    for name in sorted(context.descriptor.dtypes):
        dtype = getattr(torch, name)
        raw = torch.arange(32, dtype=torch.uint8)
        made.append(raw % 2 == 1 if dtype is torch.bool else raw.view(dtype))
    return made


def _small(context: CaseContext) -> list[Tensor]:
    base = torch.arange(24.0).view(4, 6)
    return [
        torch.tensor(5.0), base[2, 3], torch.empty(0), torch.empty(3, 0, 2), base[2:2], base[:, 6:],
        torch.empty(2, 0).t(), base[:1, :1], base[1:2, ::2], base.to(torch.int64)[0, 0].expand(3, 2),
    ]  # fmt: skip


def _with_gradients(context: CaseContext) -> list[Tensor]:
    leaf = torch.arange(6.0).view(2, 3).t()
    return [
        leaf.clone().requires_grad_(),
        torch.nn.Parameter(leaf.clone()),
        torch.nn.Parameter(torch.arange(4), requires_grad=False),
        leaf.clone(),
    ]


def _moved(context: CaseContext, tensor: Tensor) -> Tensor:
    """Returns a tensor on the device with the shape, strides and offset of ``tensor``, over a copy of its whole
    storage."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    there = context.to_device(whole).view(tensor.dtype)
    made = there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.detach().requires_grad_(tensor.requires_grad)


def _lists(context: CaseContext, folder: str, name: str) -> None:
    expected: list[Tensor] = globals()[name](context)
    with connected(context, folder) as peer:
        if peer.sends:
            given = [_moved(context, each) for each in expected]
            peer.send(given)
            peer.turn()
            return
        found = peer.receive()
        for number, (there, want) in enumerate(zip(found, expected, strict=True)):
            at = f"tensor {number}, {tuple(want.shape)}, {want.dtype}"
            check_arrived(context, there, want, at)
            context.same(
                type(there),
                type(want),
                ("the class of a tensor changed when it was sent to another process"),
                at=at,
            )
        del found, there
        peer.turn()


@cases(
    "distributed.sharing",
    over={
        "dtypes": ("_of_every_dtype",),
        "empty_and_scalar": ("_small",),
        "requires_grad": ("_with_gradients",),
    },
)
def lists(context: CaseContext, make: str) -> None:
    """A list of tensors is sent to another process: tensors of every dtype; tensors that are empty, have one element
    or have no dimensions; leaves that require a gradient, and parameters. Each tensor must arrive unchanged."""
    shared_with(context, _lists, make)


def _not_a_leaf(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        leaf = context.to_device(torch.ones(3)).requires_grad_()
        if peer.sends:
            text = "a tensor that is not a leaf was sent to another process without an error"
            context.raises(RuntimeError, peer.send, leaf * 2, text=text)
            peer.send(leaf)
            peer.turn()
            text = "a gradient of the received leaf changed the sender's leaf"
            context.check(leaf.grad is None, text)
            return
        there = peer.receive()
        context.check(
            there.requires_grad,
            ("requires_grad of a leaf is False after the leaf was sent to another process"),
        )
        (there * 3).sum().backward()
        text = "a received leaf got a wrong gradient"
        context.equal(there.grad, torch.full((3,), 3.0), text)
        del there
        peer.turn()


@cases("distributed.sharing")
def leaves_alone(context: CaseContext) -> None:
    """Sending a tensor that has a graph raises RuntimeError. A leaf can be sent; sender and receiver then accumulate
    separate gradients."""
    shared_with(context, _not_a_leaf)


# -- one storage


def _one_storage(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        base = context.to_device(torch.arange(48.0))
        views = [base[3:27].view(4, 6).t(), base[::4], base]
        if peer.sends:
            peer.send({"first": views[0], "others": [views[1]]})
            peer.send(views[2])
            peer.turn()
            peer.turn()
            want = torch.arange(48.0)
            want[3:27] = -1.0
            text = "a write to a received view did not reach the sender's storage"
            context.equal(base, want, text)
            return
        together = peer.receive()
        found = [together["first"], *together["others"], peer.receive()]
        starts = {each.untyped_storage().data_ptr() for each in found}
        text = "tensors that shared a storage arrived in another process with separate storages"
        context.check(len(starts) == 1, text, found=f"{len(starts)} storages", kind=Kind.STORAGE)
        peer.turn()
        found[0].fill_(-1.0)
        want = torch.arange(48.0)
        want[3:27] = -1.0
        text = (
            "a write to a received view is not visible in the other received views of the "
            "same storage"
        )
        context.equal(found[1], want[::4], text)
        context.equal(found[2], want, text)
        del together, found
        peer.turn()


@cases("distributed.sharing")
def one_storage(context: CaseContext) -> None:
    """Three views of one storage are sent, two in one message and one in another. They arrive as views of one storage:
    a write to one view is visible in the others and in the sender's tensors."""
    shared_with(context, _one_storage)


def _tied_weights(context: CaseContext, folder: str) -> None:
    def network() -> torch.nn.Module:
        torch.manual_seed(3)
        made = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        ).to(context.device)  # on some devices, to() makes new parameters
        made[2].weight = made[0].weight
        return made

    with connected(context, folder) as peer:
        here = network()
        if peer.sends:
            peer.send(here)
            peer.turn()
            return
        found = peer.receive()
        text = "tied weights of a module arrived in another process as two parameters"
        context.check(found[2].weight is found[0].weight, text)
        pairs = zip(found.state_dict().items(), here.state_dict().items(), strict=True)
        for (name, there), (_, want) in pairs:
            check_arrived(context, there, want, name)
        del found, pairs, there
        peer.turn()


@cases("distributed.sharing")
def module(context: CaseContext) -> None:
    """A module with tied weights and buffers is sent to another process. It arrives with the same state, and its
    weights are still tied."""
    shared_with(context, _tied_weights)


def _returned(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        if peer.sends:
            mine = context.to_device(torch.zeros(100))
            peer.send(mine[10:20])
            back = peer.receive()
            if isinstance(back, str):
                context.check(back, "the receiver could not send a received tensor back")
                context.note(f"sending a received tensor is refused: {back}")
            else:
                back.fill_(4.0)
                context.settle()
                want = torch.zeros(100)
                want[10:20] = 4.0
                text = "a tensor that was sent back to its sender does not use the sender's memory"
                context.equal(mine, want, text)
            peer.turn()
            return
        there = peer.receive()
        _send_unless_refused(peer, there, "")
        peer.turn()
        del there


@cases("distributed.sharing")
def sent_back(context: CaseContext) -> None:
    """A received tensor is sent back to its first owner. It arrives as the same memory, or sending it is refused."""
    shared_with(context, _returned)


def _on_another_index(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        for index in context.indices:
            values = numbers(index)
            if peer.sends:
                peer.send(context.lay(values, "transposed", index))
            else:
                found = peer.receive()
                text = "a tensor arrived in another process on another index"
                context.same(found.device, context.named(index), text, at=f"index {index}")
                text = "the values of a tensor changed when it was sent to another process"
                context.equal(found, values, text, f"index {index}")
                del found
            peer.turn()


@cases("distributed.sharing", requires={"multi_device"}, indices=2)
def other_indices(context: CaseContext) -> None:
    """Tensors of each device index are sent to another process. Each arrives on the index that it was sent from."""
    shared_with(context, _on_another_index)


def _queued(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        values = context.to_device(torch.zeros(1000))
        if peer.sends:
            context.settle()
            if context.descriptor.busy is not None:
                context.descriptor.busy(context.patience)
            values.fill_(6.0)
            peer.send(values)
            peer.turn()
            return
        found = peer.receive()
        text = (
            "the receiver read a tensor before the work that was queued on it at the "
            "sender had finished"
        )
        context.equal(found.clone(), torch.full((1000,), 6.0), text)
        del found
        peer.turn()


@cases("distributed.sharing", requires={"streams"})
def queued_work(context: CaseContext) -> None:
    """A tensor is sent while work that writes to it is queued. The receiver reads the values that this work writes."""
    shared_with(context, _queued)


# -- when it is freed

#: Bytes of a tensor that has a block or a mapping of its own.
_LARGE = 1 << 22


class Footprint:
    """The shared memory that this process uses, with the interface of an event: ``query()`` says whether it is no more
    than at the start."""

    def __init__(self, context: CaseContext) -> None:
        self._context = context
        self.before = self.now()

    def now(self) -> dict[str, int]:
        context, found = self._context, {}
        if "ipc_collect" in context.descriptor.functions:
            context.own("ipc_collect")()
        if context.has("allocator_statistics"):
            found["allocated bytes"] = context.counters().allocated
        if context.descriptor.host_memory and os.path.exists("/proc/self/maps"):
            with open("/proc/self/maps") as lines:
                found["shared mappings"] = sum(" rw-s " in line for line in lines)
            mine = f"torch_{os.getpid()}_"
            found["files in /dev/shm"] = sum(
                each.startswith(mine) for each in os.listdir("/dev/shm")
            )
        return found

    def query(self) -> bool:
        return all(count <= self.before[name] for name, count in self.now().items())

    def check_back(self, text: str, at: str = "") -> None:
        """Checks, with the message ``text``, that this process soon uses no more shared memory than at the start."""
        back = self._context.ends(self, FREED)
        now = {} if back else self.now()
        found = {name: count for name, count in now.items() if count > self.before[name]}
        expected = {name: self.before[name] for name in found}
        self._context.check(back, text, expected=expected, found=found, kind=Kind.STATE, at=at)


def _large(context: CaseContext, value: float) -> Tensor:
    return context.to_device(torch.full((_LARGE // 4,), value))


def _freed(context: CaseContext, folder: str, first: str) -> None:
    with connected(context, folder) as peer:
        peer.send(0) if peer.sends else peer.receive()
        before = Footprint(context)
        for turn in range(3):
            there = _large(context, float(turn)) if peer.sends else None
            if peer.sends:
                peer.send([there[::2], there])  # type: ignore[index]
            else:
                there = peer.receive()[1]
            peer.turn()
            if peer.sends is (first == "sender"):
                there = None
            others = [_large(context, -1.0)] if peer.sends else []
            peer.turn()
            if there is not None:
                want = torch.full((_LARGE // 4,), float(turn))
                text = (
                    "a process that uses a shared tensor lost the tensor's values when the "
                    "other process freed it"
                )
                context.equal(there, want, text, f"{first} first, turn {turn}")
            there = None
            del others
            peer.turn()
            text = "shared memory was still in use after the last process had freed the tensor"
            before.check_back(text, f"{first} first, turn {turn}")
            peer.turn()


@cases(
    "distributed.sharing",
    over={"freed_after_the_receiver": ("sender",), "freed_after_the_sender": ("receiver",)},
)
def freed(context: CaseContext, first: str) -> None:
    """Two processes free a shared tensor, one after the other. The last one can read its values until then, and
    afterwards the memory is free in both: the allocator's statistics, mappings and files are as before. The test is
    repeated three times."""
    shared_with(context, _freed, first)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def _repeated(context: CaseContext, folder: str) -> None:
    with connected(context, folder) as peer:
        counts = []
        for _ in range(3):
            for turn in range(8):
                if peer.sends:
                    peer.send(context.to_device(torch.full((64,), float(turn)))[::2])
                else:
                    context.equal(
                        peer.receive(),
                        torch.full((32,), float(turn)),
                        "the values of a tensor changed when it was sent to another process",
                    )
                peer.turn()
            Footprint(context)  # collects
            counts.append(_descriptors())
        text = "the number of open file descriptors rises with each tensor that is sent"
        grows = counts[2] - counts[1] >= 8 and counts[1] - counts[0] >= 8
        context.check(not grows, text, found=f"{counts} open files after 8, 16 and 24 tensors")


@cases("distributed.sharing", more=True)
def repeated(context: CaseContext) -> None:
    """Twenty-four tensors are sent, one after another, and freed. The number of open files does not rise with the
    number of tensors."""
    shared_with(context, _repeated)


# -- processes that die


def _receiver_dies(context: CaseContext, folder: str) -> None:
    with connected(context, folder, together=False) as peer:
        before = Footprint(context)
        there = _large(context, 1.0) if peer.sends else None
        if peer.sends:
            peer.send(there)
        else:
            there = peer.receive()
        peer.turn()
        if not peer.sends:
            os.kill(os.getpid(), signal.SIGKILL)
        _wait_for_death(peer)
        text = "the sender's tensor changed when the receiver was killed"
        context.equal(there, torch.full((_LARGE // 4,), 1.0), text)  # type: ignore[arg-type]
        del there
        before.check_back("memory that a killed process had received was not freed")


def _wait_for_death(peer: Peer) -> None:
    with contextlib.suppress(EOFError, ConnectionError):
        peer.connection.poll(FREED)
        peer.receive()


@cases("distributed.sharing", more=True)
def receiver_killed(context: CaseContext) -> None:
    """The receiver of a tensor is killed while it uses the tensor. The sender's memory is free when the sender frees
    the tensor."""
    with socket_folder() as folder:
        context.children(_receiver_dies, folder, ranks=2, lost=(1,))


def _use_strategy(strategy: str, folder: str) -> None:
    torch.multiprocessing.set_sharing_strategy(strategy)
    os.environ["TMPDIR"] = folder  # for the process that looks after shared files


def _sender_dies(context: CaseContext, folder: str, strategy: str) -> int:
    _use_strategy(strategy, folder)
    with connected(context, folder, together=False) as peer:
        pids = peer.ranks.exchange(str(os.getpid()))
        if peer.sends:
            peer.send(_large(context, 1.0))
            peer.turn()
            os.kill(os.getpid(), signal.SIGKILL)
        there = peer.receive()
        peer.turn()
        _wait_for_death(peer)
        there.add_(1)
        text = "a received tensor lost its values when the sender was killed"
        context.equal(there, torch.full((_LARGE // 4,), 2.0), text)
        return int(pids[0])


class _Gone:
    """The files through which a process shares memory, with the interface of an event: ``query()`` says whether all of
    them are deleted."""

    def __init__(self, pid: int) -> None:
        self._prefix = f"torch_{pid}_"

    def query(self) -> bool:
        return not any(each.startswith(self._prefix) for each in os.listdir("/dev/shm"))


def _must_be_host_memory(context: CaseContext) -> None:
    if not context.descriptor.host_memory:
        raise NotDeclared(
            "the descriptor does not declare host_memory: the device's memory "
            "may be lost with the process that owns it"
        )


@cases("distributed.sharing", more=True)
def sender_killed(context: CaseContext) -> None:
    """The sender of a tensor is killed, on a device whose memory is host memory. The receiver can still read the
    tensor, and when it ends, no file in shared memory is left. This is tried with each sharing strategy of
    torch.multiprocessing."""
    _must_be_host_memory(context)
    for strategy in sorted(torch.multiprocessing.get_all_sharing_strategies()):
        with socket_folder() as folder:
            results = context.children(_sender_dies, folder, strategy, ranks=2, lost=(0,))
            if os.path.isdir("/dev/shm"):
                text = "a process that was killed left files in shared memory"
                gone = context.ends(_Gone(results[1].value), FREED)
                context.check(gone, text, at=f"strategy {strategy}")


def _freed_as_files(context: CaseContext, folder: str) -> None:
    _use_strategy("file_system", folder)
    for first in ("sender", "receiver"):
        _freed(context, folder, first)
    for view in ("stepped", "transposed"):
        _arrives(context, folder, view)


@cases("distributed.sharing", more=True)
def as_files(context: CaseContext) -> None:
    """Tensors are shared with the strategy file_system, on a device whose memory is host memory. They arrive unchanged,
    and the files are deleted when the last process frees its tensors."""
    _must_be_host_memory(context)
    with socket_folder() as folder:
        context.children(_freed_as_files, folder, ranks=2)
