"""Calls each aten op of a forward and a backward pass on the device and with FakeTensor, and records both results as
evidence for compile.meta_agrees. Repro scripts contain these functions, which need only torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.ops.calls import Invocation, laid_out, strided, views
from opinfo.compare import replace_tensors, tensors_of
from opinfo.guarded import Guarded
from opinfo.torch_private import (
    NO_FAKE_ANSWER,
    FakeTensor,
    FakeTensorMode,
    fake_mode_without_cache,
    negated,
    storage_id,
)


@dataclass(frozen=True, slots=True)
class Described:
    """The facts about a tensor that a call returned. ``argument`` is the index of the tensor argument with the same
    storage, ``output`` the index of the first output with the same storage; both are None if there is no such
    tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str
    conj: bool
    neg: bool
    argument: int | None
    output: int | None


@dataclass(slots=True)
class AtenCall:
    """An aten call with the tensors that the device and FakeTensor returned. ``fake`` is None if FakeTensor needs
    values to compute the result. ``raised`` is an exception that FakeTensor raised although the device did not."""

    name: str
    given: tuple[str, ...]  # its tensor arguments, as text
    real: tuple[Described, ...]
    fake: tuple[Described, ...] | None = None
    raised: Exception | None = None


@dataclass(slots=True)
class AtenCalls:
    """The aten calls that one call of an op and its backward made. ``handed_back`` is True if all tensors that the
    op returned are also its inputs. ``raised`` is the exception that the device raised."""

    handed_back: bool = False
    calls: list[AtenCall] = field(default_factory=list)
    raised: Exception | None = None
    unjudged: Exception | None = None


class BesideFake(TorchDispatchMode):
    """A dispatch mode that makes each aten call a second time, with FakeTensors of the same shapes, strides and storage
    offsets as its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[AtenCall] = []
        self._mode = fake_mode_without_cache()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_of((args, kwargs))
        if any(each.layout != torch.strided for each in given) or _is_of_a_number(
            func, args, given
        ):
            return func(*args, **kwargs)
        fakes = fakes_of(self._mode, given)
        feed = iter(fakes)
        fake_args, fake_kwargs = replace_tensors((args, kwargs), lambda _: next(feed))
        told = tuple(shown(each) for each in given)
        result = func(*args, **kwargs)
        if any(each.layout != torch.strided for each in tensors_of(result)):
            return result
        call = AtenCall(str(func), told, described(result, given))
        try:
            with self._mode:
                call.fake = described(func(*fake_args, **fake_kwargs), fakes)
        except NO_FAKE_ANSWER:
            pass
        except Exception as error:  # FakeTensor may raise any type; the judge judges it
            call.raised = error
        self.calls.append(call)
        return result


def _is_of_a_number(func: Any, args: Sequence[Any], given: Sequence[torch.Tensor]) -> bool:
    """Returns True for a call whose only tensor stands for a Python number, such as ``_conj`` in the backward of ``x
    * 1j``. Such a call does not run on the device, and FakeTensor turns it into a constant without a conj bit."""
    first = func._schema.arguments[:1]
    is_tensor = bool(first) and str(first[0].type) == "Tensor"
    return not given and is_tensor and bool(args) and isinstance(args[0], (int, float, complex))


def fakes_of(mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns FakeTensors of ``mode`` with the devices, shapes, strides and storage offsets of the given tensors. Tensors
    that share a storage also share one in the result."""
    bases: dict[int, torch.Tensor] = {}
    found: list[torch.Tensor] = []
    for each in tensors:
        storage = storage_id(each)
        if storage not in bases:
            nbytes = each.untyped_storage().nbytes()
            count = -(-nbytes // each.dtype.itemsize)
            bases[storage] = torch.empty(count, dtype=each.dtype, device="meta")
        base = bases[storage]
        if base.dtype != each.dtype:
            base = base.view(each.dtype)
        meta = base.as_strided(each.shape, each.stride(), each.storage_offset())
        meta = torch.conj(meta) if each.is_conj() else meta
        meta = negated(meta) if each.is_neg() else meta
        found.append(FakeTensor(mode, meta, each.device))
    return found


def described(result: Any, given: Sequence[torch.Tensor]) -> tuple[Described, ...]:
    """Returns a description of each tensor in ``result``, the result of a call with the tensors ``given``."""
    outputs = tensors_of(result)
    arguments = [storage_id(each) for each in given]
    own = [storage_id(each) for each in outputs]
    found = []
    for place, each in enumerate(outputs):
        its = own[place]
        argument = arguments.index(its) if its in arguments else None
        first = own.index(its)
        found.append(
            Described(
                shape=tuple(each.shape),
                stride=tuple(each.stride()),
                offset=int(each.storage_offset()),
                dtype=each.dtype,
                device=each.device.type,
                conj=each.is_conj(),
                neg=each.is_neg(),
                argument=argument,
                output=first if first != place else None,
            )
        )
    return tuple(found)


def shown(tensor: torch.Tensor) -> str:
    """Returns the dtype, shape and strides of a tensor as a string."""
    at = f" at {tensor.storage_offset()}" if tensor.storage_offset() else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}{list(tensor.stride())}{at}"


def called_beside_fake(call: Invocation, places: Sequence[int]) -> AtenCalls:
    """Makes the call and its backward on new buffers, and repeats each aten call with FakeTensor. ``places`` are the
    positions of the inputs whose gradients are computed."""
    geometries = [each.geometry if isinstance(each, Guarded) else None for each in call.inputs]
    held = laid_out(call.values, geometries, call.move, call.guarded)
    inputs = [each.data for each in views(held)]
    for place in places:
        inputs[place].requires_grad_()
    found, mode = AtenCalls(), BesideFake()
    try:
        args, kwargs = call.arguments(list(inputs), call.device)
        with torch.set_grad_enabled(bool(places)), mode:
            outputs = strided(call.function(*args, **kwargs))
        found.handed_back = all(any(out is each for each in inputs) for out in outputs)
        ends = [each for each in outputs if each.requires_grad]
        cotangents = [torch.ones_like(each) for each in ends]
        if ends:
            # The backward runs in this thread: a thread of autograd's own would hold the mode, which is a Python
            # object, and a thread that releases one while a repro script ends aborts the process.
            with mode, torch.autograd.set_multithreading_enabled(False):
                leaves = [inputs[place] for place in places]
                torch.autograd.grad(ends, leaves, cotangents, allow_unused=True)
        call.settle(outputs)
    except Exception as error:  # other clauses judge an exception of the call
        found.raised = error
    found.calls = mode.calls
    return found
