"""The evidence of a call: everything about the device that a judge may read. The evidence is collected right after the
call, always completely and in the same order, so that a verdict does not depend on the other clauses of the run. Repro
scripts contain these functions, which need only torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.checks.ops.calls import Invocation, address, container, strided, views
from opinfo.compare import replace_tensors
from opinfo.guarded import ByValues, Damage, Guarded, identity
from opinfo.layouts import Geometry
from opinfo.reference import significant
from opinfo.torch_private import storage_id


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """A strided tensor of a result, as the device describes it.

    ``stride`` and ``offset`` are empty and 0 on a device that does not declare strides. ``nbytes`` is the size of the
    tensor's storage. ``storage`` is the index of the guarded input with the same storage, or None if there is none.
    ``overlaps`` has the indices of the other guarded inputs whose addresses overlap those of the tensor's storage. On a
    device that does not declare the capability ``storage``, ``nbytes`` and ``storage`` are None and ``overlaps`` is
    empty; without the capability ``pointers``, ``overlaps`` is empty.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conj: bool
    neg: bool
    nbytes: int | None
    storage: int | None = None
    overlaps: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def needed_bytes(self) -> int:
        """The number of bytes from the start of the storage to the end of the last element."""
        if 0 in self.shape:
            return 0
        last = self.offset
        for size, step in zip(self.shape, self.stride):
            last += (size - 1) * step
        return (last + 1) * self.dtype.itemsize

    @property
    def missing_bytes(self) -> bool:
        """True if the storage is known to be too small for the elements."""
        return self.nbytes is not None and self.needed_bytes > self.nbytes


@dataclass(frozen=True, slots=True)
class InputMemory:
    """A guarded input and its storage, as the call left them.

    ``asked`` is the geometry with which the view was made; ``shape`` and ``stride`` are those of the view after the
    call. ``before`` has the bytes of the storage before the call. ``values`` are the elements after the call, for an
    input that the op updates. ``guarded`` is False if no known bytes lie around the view. ``by_values`` is True if only
    values can be read from the device, so that the bits of a NaN are not known.
    """

    asked: Geometry
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    as_asked: bool
    before: torch.Tensor
    damage: Damage | None
    values: torch.Tensor | None = None
    guarded: bool = True
    by_values: bool = False


@dataclass(frozen=True, slots=True)
class TargetAfter:
    """A tensor that a call was to write to (``out=``, or ``self`` of an in-place call), as the call left it.

    ``asked`` is the geometry with which the target was made; None for a target without known bytes around it. ``stays``
    is True if the target is still at its address; on a device without addresses, if its values are in the storage in
    which it was made. ``values`` are its elements; None if they were not read, for example because the target has
    moved. ``outside_intact`` is True if no byte around its elements has changed.
    """

    dtype: torch.dtype
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    values: torch.Tensor | None = None
    asked: Geometry | None = None
    as_asked: bool = True
    stays: bool = True
    addressed: bool = False
    outside_intact: bool = True
    by_values: bool = False

    @property
    def keeps_its_strides(self) -> bool:
        """True if the target still has the strides with which it was made. Only the strides of dimensions of size 2 or
        more count. On a device from which only values can be read, the shapes are compared instead."""
        if self.asked is None or self.by_values:
            return self.asked is None or self.shape == self.asked.shape
        asked = significant(self.asked.shape, self.asked.stride)
        return significant(self.shape, self.stride) == asked


@dataclass(frozen=True, slots=True)
class WriteThrough:
    """The effect of writing 1 to every element of an output. ``error`` is the exception that the write raised, or the
    reading of an input after the write. ``after`` maps the index of each input whose storage changed to the bytes of that
    storage. ``back`` has the values of the output, which has dtype ``dtype``, after the known bytes of these inputs were
    restored."""

    dtype: torch.dtype
    error: Exception | None
    after: dict[int, torch.Tensor]
    back: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was recorded about a call. ``read`` is the result, copied to the CPU; ``raised`` is the exception
    that the call raised. ``outputs`` describes the tensors of the result, ``inputs`` the inputs after the call, and
    ``targets`` the tensors that the call was to write to. ``writes`` says for each output what a later write to the
    output changed; it is empty if no writes were tried."""

    read: Any = None
    raised: Exception | None = None
    unjudged: Exception | None = None  # an exception of a step other than the call itself
    judged_by: str = ""  # the clause that judges ``unjudged``, if it does not judge plain calls
    warnings: tuple[str, ...] = ()
    outputs: tuple[OutputFacts, ...] = ()
    inputs: tuple[InputMemory | None, ...] = ()
    targets: tuple[TargetAfter, ...] = ()
    writes: tuple[WriteThrough | None, ...] = ()
    shows_storage: bool = True  # whether the device declares the capability ``storage``


# -- collecting


def attempt(
    call: Invocation, targets: Sequence[Guarded | torch.Tensor] = (), form: str = ""
) -> tuple[Any, Exception | None]:
    """Makes the call and waits for its result. Returns the result and None, or None and the exception that was raised
    by the call or during the wait. If ``form`` is given, the targets are passed as ``out=``."""
    given = views(targets)
    args, kwargs = call.arguments(views(call.inputs), call.device)
    out = {"out": container(form, given)} if form else {}
    try:
        result = call.function(*args, **kwargs, **out)
        call.settle(result)
    except Exception as error:  # a kernel may raise any type; the judges judge it
        return None, error
    return result, None


def called(call: Invocation) -> Evidence:
    """Makes the call and returns its evidence. Inputs that the call changed are then restored to their known bytes."""
    return collect_evidence(call, *attempt(call))


def called_into(
    call: Invocation, targets: Sequence[Guarded | torch.Tensor], form: str, read: bool = False
) -> Evidence:
    """Makes the call with ``targets`` as ``out=`` and returns its evidence. If ``form`` is empty, the targets are among
    the inputs, and no ``out=`` is passed. If ``read`` is True, the evidence has the values of the targets as the result
    of the call."""
    at = [address(call, each) for each in views(targets)]
    _, error = attempt(call, targets, form)
    mutable = [n for n, each in enumerate(call.inputs) if any(each is its for its in targets)]
    found = collect_evidence(call, None, error, mutable)
    left = tuple([target_after(call, each, place) for each, place in zip(targets, at)])
    if read and error is None:
        found = replace(found, read=container(form, [call.back(each) for each in views(targets)]))
    return replace(found, targets=left)


def collect_evidence(
    call: Invocation,
    result: Any,
    error: Exception | None,
    mutable: Collection[int] = (),
    updated: Collection[int] = (),
) -> Evidence:
    """Returns the evidence of a call that was made. Inputs that the call changed are restored to their known bytes,
    except those whose index is in ``mutable``, because the op writes to them. The elements of the inputs whose index is
    in ``updated`` are read."""
    read, unreadable = None, None
    outputs = tuple([output_facts(call, each) for each in strided(result)])
    if any(each.missing_bytes for each in outputs):
        # Reading it could end the process.
        unreadable = RuntimeError("an output extends past its storage, so it was not read")
    elif error is None:
        try:
            read = result if call.back is identity else replace_tensors(result, call.back)
        except Exception as late:  # queued work may raise when it is waited for
            error, outputs = late, ()
    inputs = tuple([input_memory(call, each, n in updated) for n, each in enumerate(call.inputs)])
    spoilt = spoilt_inputs(call, inputs, mutable)
    if spoilt and call.back is identity:  # the result may lie in an input
        read = copied(read)
    for each in spoilt:
        each.restore(call.move)
    return Evidence(
        read,
        error,
        unreadable,
        judged_by="layout.output_fresh" if unreadable else "",
        outputs=outputs,
        inputs=inputs,
        shows_storage=call.storage,
    )


def copied(read: Any) -> Any:
    return replace_tensors(read, lambda t: t.clone() if t.layout == torch.strided else t)


def output_facts(call: Invocation, tensor: torch.Tensor) -> OutputFacts:
    """Returns the device's description of a tensor of a result, with the inputs that it shares memory with."""
    found = facts_of(tensor, strides=call.strides, storage=call.storage)
    storage, overlaps = None, []
    if found.nbytes is not None:
        own, nbytes = storage_id(tensor), found.nbytes
        start = tensor.untyped_storage().data_ptr() if call.pointers else 0
        for place, each in enumerate(call.inputs):
            if not isinstance(each, Guarded):
                continue
            if storage_id(each.base) == own:
                storage = place
            elif start and nbytes:
                other = each.base.untyped_storage()
                at = other.data_ptr()
                if at and at < start + nbytes and start < at + other.nbytes():
                    overlaps.append(place)
    if storage is None and not overlaps:
        return found
    return replace(found, storage=storage, overlaps=tuple(overlaps))


def facts_of(tensor: torch.Tensor, *, strides: bool = True, storage: bool = True) -> OutputFacts:
    """Returns the device's description of a tensor. ``strides`` and ``storage`` say whether the device shows them."""
    return OutputFacts(
        shape=tuple(tensor.shape),
        stride=tensor.stride() if strides else (),
        offset=int(tensor.storage_offset()) if strides else 0,
        dtype=tensor.dtype,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        nbytes=tensor.untyped_storage().nbytes() if storage else None,
    )


def input_memory(
    call: Invocation, each: Guarded | torch.Tensor, updated: bool = False
) -> InputMemory | None:
    """Returns the state of an input after the call; None for an input without known bytes. If ``updated`` is True, the
    elements of the input are read."""
    if not isinstance(each, Guarded):
        return None
    view, by_values = each.view, isinstance(each, ByValues)
    damage = None if each.intact(call.back) else each.damage(call.back)
    values = call.back(view).clone() if updated else None
    return InputMemory(
        each.geometry,
        view.dtype,
        tuple(view.shape),
        view.stride() if call.strides else (),
        each.as_asked(),
        each.before,
        damage,
        values,
        guarded=not (by_values and each.whole),  # type: ignore[attr-defined]
        by_values=by_values,
    )


def spoilt_inputs(
    call: Invocation, found: Sequence[InputMemory | None], mutable: Collection[int] = ()
) -> list[Guarded]:
    """Returns the inputs whose bytes the call changed, except those whose index is in ``mutable``."""
    return [
        each
        for place, (each, its) in enumerate(zip(call.inputs, found))
        if isinstance(each, Guarded) and its and its.damage is not None and place not in mutable
    ]


def target_after(
    call: Invocation, target: Guarded | torch.Tensor, at: int | None, restrides: bool = False
) -> TargetAfter:
    """Returns the state of a target after the call. ``at`` is the address that the target had before the call. If the
    target has moved or its strides have changed, its values are read only if ``restrides`` is True, because reading a
    tensor that extends past its storage can end the process."""
    view = target.view if isinstance(target, Guarded) else target
    found = TargetAfter(
        view.dtype,
        view.device.type,
        tuple(view.shape),
        tuple(view.stride()) if call.strides else (),
    )
    if not isinstance(target, Guarded):
        whole = facts_of(view, strides=call.strides, storage=call.storage)
        there = view.device.type == call.device.type and not whole.missing_bytes
        return replace(found, values=call.back(view) if there else None)
    found = replace(
        found,
        asked=target.geometry,
        as_asked=target.as_asked(),
        addressed=call.pointers,
        by_values=isinstance(target, ByValues),
    )
    kept = found.keeps_its_strides
    if call.pointers:
        stays = view.data_ptr() == at
    else:
        stays = not kept or target.arrived(call.back)
    readable = restrides or (stays and kept)
    return replace(
        found,
        stays=stays,
        values=call.back(view) if readable else None,
        outside_intact=target.outside_intact(call.back),
    )


# -- writes to the outputs


def called_and_written_to(call: Invocation, mutable: Collection[int] = ()) -> Evidence:
    """Makes the call, then writes to each output that may share memory with an input, and returns the evidence of the
    call and of these writes. Afterwards the inputs have their known bytes again, except those whose index is in
    ``mutable``, because the op updates them."""
    result, error = attempt(call)
    found = collect_evidence(call, result, error, mutable, mutable)
    if found.raised is not None or found.unjudged is not None:
        return found
    outputs = strided(result)
    tried = [may_share(call, each) for each in found.outputs]
    if not any(tried):
        return found
    if any(may and out.device.type == "cpu" for out, may in zip(outputs, tried)):
        # Reading an output on the CPU does not copy it, on no device: `x.to("cpu")` returns one.
        found = replace(found, read=copied(found.read))
    writes = [write_through(call, out) if may else None for out, may in zip(outputs, tried)]
    return replace(found, writes=tuple(writes))


def may_share(call: Invocation, out: OutputFacts) -> bool:
    """Returns True if only a write to an output can show whether the output shares memory with an input. On a device
    that declares ``storage``, these are outputs that have the storage of an input, if their own elements do not overlap
    and are not conjugated or negated lazily; on other devices, all outputs that have elements."""
    if not out.numel or not call.storage:
        return bool(out.numel)
    return out.storage is not None and not (
        out.conj or out.neg or may_overlap(out.shape, out.stride)
    )


def write_through(call: Invocation, out: torch.Tensor) -> WriteThrough:
    """Writes 1 to every element of an output, records which inputs change, and restores the known bytes of these
    inputs. An input that cannot be read after the write is created again."""
    error: Exception | None = None
    try:
        with torch.no_grad():
            out.fill_(1)
    except Exception as raised:  # the output's elements overlap, or the device has no fill_
        error = raised
    after = {}
    for place, each in enumerate(call.inputs):
        if not isinstance(each, Guarded):
            continue
        try:
            if not each.intact(call.back):
                after[place] = each.bytes_now(call.back)
                each.restore(call.move)
        except NotImplementedError:  # the device cannot read its tensors back at all
            raise
        except RuntimeError as raised:  # from the device; a mistake of ours has another type
            error = error or raised
            each.create_again(call.move)
    back = call.back(out).clone() if error is None else None
    return WriteThrough(out.dtype, error, after, back)


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns True if two elements of a view with the given shape and strides may have the same address. The result is
    False only if each stride exceeds the largest offset that the dimensions of smaller strides can give, so True is
    also returned for a few views whose elements do not overlap."""
    reach = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape) if n > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False
