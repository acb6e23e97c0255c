"""What a copy must keep: values, dtypes, and what other libraries are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import value_behind
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _python_type(dtype: torch.dtype) -> type:
    if dtype == torch.bool:
        return bool
    if dtype.is_complex:
        return complex
    return float if dtype.is_floating_point else int


def _dtypes(context: Context) -> list[torch.dtype]:
    return [getattr(torch, name) for name in sorted(context.descriptor.dtypes)]


def _here(values: Any, dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # complex32 is experimental
        return torch.tensor(values, dtype=torch.float32).to(dtype)


def _there(context: Context, values: Any, dtype: torch.dtype) -> torch.Tensor:
    return context.to_device(_here(values, dtype))


@cases("transfer.scalars")
def item(context: Context) -> None:
    """item() gives the value in the Python type of its dtype."""
    for dtype, value in product(_dtypes(context), (1.0, 2.0)):  # what every dtype holds, e8m0 too
        kind, got = _python_type(dtype), _there(context, value, dtype).item()
        context.same(type(got), kind, f"item() of {dtype} has the right type")
        context.same(got, kind(value), f"item() of {dtype} has the right value")


@cases("transfer.scalars")
def tolist(context: Context) -> None:
    """tolist() gives nested lists of values in the Python type of the dtype."""
    values = [[1.0, 2.0, 4.0], [2.0, 1.0, 1.0]]
    for dtype in _dtypes(context):
        kind, got = _python_type(dtype), _there(context, values, dtype).tolist()
        want = [[kind(value) for value in row] for row in values]
        context.same(got, want, f"tolist() of {dtype} gives the values")
        types = {type(value) for row in got for value in row}
        context.same(types, {kind}, f"tolist() of {dtype} gives the right type")


@cases("transfer.scalars")
def from_a_view(context: Context) -> None:
    """item() and tolist() of views read the elements of the view."""
    base = context.to_device(torch.arange(12, dtype=torch.int64).reshape(3, 4))
    context.same(base[1, 2].item(), 6, "item() of one element")
    context.same(base.t().tolist(), [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]], "transposed")
    context.same(base[:, ::2].tolist(), [[0, 2], [4, 6], [8, 10]], "stepped")


@cases("transfer.scalars")
def again_and_again(context: Context) -> None:
    """item() of an element of a view gives its value after thousands of calls, too."""
    base = context.to_device(torch.arange(400, dtype=torch.float32).reshape(20, 20))
    wrong = [n for n in range(3000) if base[n % 19][n % 20].item() != n % 19 * 20 + n % 20]
    context.same(wrong[:1], [], "calls that gave another value")


@cases("transfer.scalars")
def truth(context: Context) -> None:
    """bool() is about the value; of several elements it raises."""
    for dtype in (torch.bool, torch.int64, torch.float32):
        answers = bool(_there(context, 1, dtype)), bool(_there(context, 0, dtype))
        context.same(answers, (True, False), f"bool() of {dtype}")
    for dtype in _dtypes(context):
        context.check(bool(_there(context, 1.0, dtype)) is True, f"bool() of one as {dtype}")
    several = context.to_device(torch.ones(2))
    context.raises(RuntimeError, bool, several, text="bool() of two elements is ambiguous")


@cases("transfer.scalars")
def equality(context: Context) -> None:
    """torch.equal is a bool, True exactly where all values agree."""
    for dtype in (torch.bool, torch.int64, torch.float32):
        several = [1.0, 0.0], [1.0, 0.0], [1.0, 1.0]
        one, same, other = (_there(context, values, dtype) for values in several)
        context.check(torch.equal(one, same) is True, f"equal values of {dtype}")
        context.check(torch.equal(one, other) is False, f"other values of {dtype}")
    shapes = torch.equal(context.to_device(torch.ones(2)), context.to_device(torch.ones(3)))
    context.check(shapes is False, "other shapes")


@cases("transfer.scalars")
def printed(context: Context) -> None:
    """repr shows the values as on the CPU, and says the device where that is not the default."""
    for dtype in _dtypes(context):
        here = _here([[1.0, 2.0], [4.0, 1.0]], dtype)
        there = context.to_device(here)
        text = repr(there)
        want = repr(here).removeprefix("tensor(")[:-1].split(", dtype=")[0]
        context.check(want in text, f"repr of {dtype} shows the values", expected=want, found=text)
        named = f"device='{there.device}'" in text
        default = there.device.type == torch.get_default_device().type
        context.check(named or default, "it says the device", found=text)


#: Ways to see a value, and what they give for 3. A device's class of tensors may have methods of its own.
_READS: dict[str, tuple[Callable[[torch.Tensor], Any], Any]] = {
    "item": (lambda there: there.item(), 3.0),
    "tolist": (lambda there: there.tolist(), 3.0),
    "bool": (bool, True),
    "equal": (lambda there: torch.equal(there, torch.full_like(there, 3.0)), True),
    "repr": (lambda there: "3." in repr(there), True),
}


@cases("transfer.scalars", over={f"{n}_behind_work": (n,) for n in _READS}, requires={"streams"})
def behind_work(context: Context, name: str) -> None:
    """item, tolist, bool, equal and repr see the work that was queued before them."""
    read, want = _READS[name]
    stream, there = context.stream(), context.to_device(torch.zeros(()))
    read(there.fill_(1.0))
    there.fill_(0.0)
    context.settle()

    def late() -> Any:
        with stream:
            return read(there.fill_(3.0))

    context.same(
        value_behind(context.hold(stream, needed=False), late),
        want,
        "the work queued before is seen",
    )


@cases("transfer.scalars", over={f"{name}_after_work": (name,) for name in _READS})
def after_work(context: Context, name: str) -> None:
    """item, tolist, bool, equal and repr see a row of kernels before them."""
    read, want = _READS[name]
    there = context.to_device(torch.zeros(()))
    for _ in range(20):
        there.fill_(1.0)
        there.add_(1.0).mul_(2.0).sub_(1.0)
        context.same(read(there), want, "the work queued before is seen")
        there.fill_(0.0)


@cases("transfer.numpy_refused", over={"numpy": ("numpy",), "array": ("array",)})
def refused(context: Context, way: str) -> None:
    """numpy() of a device's tensor raises TypeError; if the device is the host, it is its memory."""
    import numpy as np

    there = context.to_device(torch.arange(6.0).reshape(2, 3))
    read: Callable[[Any], Any] = (lambda it: it.numpy()) if way == "numpy" else np.asarray
    if there.device.type == "cpu":
        # The clause is about other devices; of the host, numpy() is documented to share memory.
        got, want = read(there), (there.add_(1)).tolist()
        context.same(got.tolist(), want, "the host's memory is shared")
        return
    # torch itself refuses subclasses with a RuntimeError.
    refusals = TypeError if type(there) is torch.Tensor else (TypeError, RuntimeError)
    context.raises(refusals, read, there, text="no array over the device's memory is made")
    for view in (there.t(), there.narrow(0, 1, 1), there.narrow(0, 0, 0)):
        context.raises(refusals, read, view, text="nor of a view, nor of no elements")


@cases("transfer.numpy_refused")
def forced(context: Context) -> None:
    """numpy(force=True) gives a copy with the values; if the device is the host, an array of them."""
    there = context.to_device(torch.arange(6.0).reshape(2, 3))
    got = there.numpy(force=True)
    context.same(got.tolist(), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], "the values are there")
    there.add_(1)
    shared = got.tolist()[0][0] == 1.0
    context.same(shared, there.device.type == "cpu", "only the host's memory is shared")


@cases("transfer.dlpack")
def same_memory(context: Context) -> None:
    """from_dlpack gives a tensor over the same elements, on the same device, without a copy."""
    for index in context.indices:
        given = context.to_device(torch.arange(24.0).reshape(4, 6), index)
        got = from_dlpack(given)
        context.same(got.device, given.device, "it is on the device")
        context.equal(got, torch.arange(24.0).reshape(4, 6), "it has the values")
        if context.has("pointers"):
            context.same(got.data_ptr(), given.data_ptr(), "it is the same memory")
        given.mul_(2)
        context.equal(got, torch.arange(24.0).reshape(4, 6) * 2, "it sees what is written")
        got.fill_(3)
        context.equal(given, torch.full((4, 6), 3.0), "what it writes is seen")


@cases("transfer.dlpack", requires={"strides", "storage"})
def views(context: Context) -> None:
    """Strides and offset address the elements of the view, and no others."""
    want = torch.arange(60.0)
    base = context.to_device(want)
    for size, stride, offset in (((3, 4), (1, 5), 7), ((3, 4), (8, 2), 3), ((5,), (1,), 11)):
        given = base.as_strided(size, stride, offset)
        got = from_dlpack(given)
        context.same(tuple(got.stride()), stride, "the strides come along")
        context.equal(got, want.as_strided(size, stride, offset), "the elements are the view's")
        if context.has("pointers"):
            context.same(got.data_ptr(), given.data_ptr(), "the first is where it was")


@cases("transfer.dlpack")
def dtypes(context: Context) -> None:
    """Every common dtype is exchanged."""
    common = (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"),
        *("float64", "bool", "complex64"),
    )
    for name in (each for each in common if each in context.descriptor.dtypes):
        values = torch.tensor([1, 0, 1]).to(getattr(torch, name))
        context.equal(from_dlpack(context.to_device(values)), values, f"{name} is exchanged")


@cases("transfer.dlpack")
def outlives(context: Context) -> None:
    """The memory lives as long as the tensor that was made from it."""
    got = from_dlpack(context.to_device(torch.full((500,), 7.0)))
    others = [torch.zeros(500, device=context.device) for _ in range(8)]
    context.equal(got, torch.full((500,), 7.0), "its values stay when the first tensor is gone")
    del others


@cases("transfer.dlpack")
def names_the_device(context: Context) -> None:
    """__dlpack_device__ gives a type and the index; capsules are taken once."""
    for index in context.indices:
        given = context.to_device(torch.ones(2), index)
        kind, number = given.__dlpack_device__()
        context.same(int(number), index, "the index is the tensor's")
        context.check(int(kind) > 0, "the type is one of DLPack's", found=kind)
        context.equal(from_dlpack(given.__dlpack__()), torch.ones(2), "a capsule holds the tensor")


@cases("transfer.dlpack")
def grad_refused(context: Context) -> None:
    """A tensor that requires grad is refused."""
    leaf, refusals = context.to_device(torch.ones(3)).requires_grad_(), (BufferError, RuntimeError)
    for given in (leaf, leaf * 2):
        text = "a tensor that requires grad is not exported"
        context.raises(refusals, from_dlpack, given, text=text)
    context.equal(from_dlpack(leaf.detach()), torch.ones(3), "detached, it is")


_NAMED: dict[str, Any] = {"requires": {"streams", "native_handle"}}


@cases("transfer.dlpack", over={"consumer_waits": (0, False)}, **_NAMED)
@cases("transfer.dlpack", over={"consumer_waits_for_the_default": (0, True)}, **_NAMED)
@cases(
    "transfer.dlpack", over={"consumer_waits_on_the_other_index": (1, False)}, indices=2, **_NAMED
)
def consumer_waits(context: Context, index: int, default: bool) -> None:
    """Work of the stream that the consumer names sees the producer's work before."""
    consumer = context.stream(index)
    producer = context.current_stream(index) if default else context.stream(index)
    context.must(producer != consumer, "the streams differ", by="streams.identity")
    given, target = (context.to_device(torch.zeros(500), index) for _ in range(2))
    target.copy_(given.fill_(0.0))
    context.settle()
    with context.hold(producer, needed=False) as hold:
        with producer:
            given.fill_(7.0)
            capsule = given.__dlpack__(stream=consumer.native_handle)
        with consumer:
            target.copy_(from_dlpack(capsule))
        hold.waits(consumer, "the consumer's stream waits")
    consumer.synchronize()
    context.equal(target, torch.full((500,), 7.0), "it sees the producer's work")


@cases("transfer.dlpack", **_NAMED)
def consumer_is_the_producer(context: Context) -> None:
    """Under the consumer's own stream the exchange goes on at once, and its work stays in order."""
    stream, other = context.streams()
    given, target = (context.to_device(torch.zeros(500)) for _ in range(2))
    target.copy_(given.fill_(0.0))
    context.settle()
    with context.hold(stream, needed=False) as hold, stream:
        given.fill_(7.0)
        got = from_dlpack(given.__dlpack__(stream=stream.native_handle))
        target.copy_(got)
        got.fill_(8.0)
        hold.pending("what was queued waits with its stream", stream)
        context.check(context.ends(other), "and no other stream does")
    stream.synchronize()
    context.equal(target, torch.full((500,), 7.0), "the copy lies between the two fills")
    context.equal(given, torch.full((500,), 8.0), "both tensors are one memory")
