"""Cases of the clauses transfer.scalars, transfer.numpy_refused and transfer.dlpack: values that are passed
from the device to Python and to other libraries."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import value_behind
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _python_type(dtype: torch.dtype) -> type:
    if dtype == torch.bool:
        return bool
    if dtype.is_complex:
        return complex
    return float if dtype.is_floating_point else int


def _dtypes(context: CaseContext) -> list[torch.dtype]:
    return [getattr(torch, name) for name in sorted(context.descriptor.dtypes)]


def _here(values: Any, dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that complex32 is experimental
        return torch.tensor(values, dtype=torch.float32).to(dtype)


def _there(context: CaseContext, values: Any, dtype: torch.dtype) -> torch.Tensor:
    return context.to_device(_here(values, dtype))


@cases("transfer.scalars")
def item(context: CaseContext) -> None:
    """item() returns the value of a tensor with one element, in the Python type that fits the dtype (bool, int,
    float or complex)."""
    for dtype, value in product(_dtypes(context), (1.0, 2.0)):  # exact in every dtype, also e8m0fnu
        kind, got = _python_type(dtype), _there(context, value, dtype).item()
        context.same(type(got), kind, f"item() of {dtype} returned the wrong type")
        context.same(got, kind(value), f"item() of {dtype} returned the wrong value")


@cases("transfer.scalars")
def tolist(context: CaseContext) -> None:
    """tolist() returns nested lists with the values of the tensor, in the Python type that fits the dtype."""
    values = [[1.0, 2.0, 4.0], [2.0, 1.0, 1.0]]
    for dtype in _dtypes(context):
        kind, got = _python_type(dtype), _there(context, values, dtype).tolist()
        want = [[kind(value) for value in row] for row in values]
        context.same(got, want, f"tolist() of {dtype} returned wrong values")
        types = {type(value) for row in got for value in row}
        context.same(types, {kind}, f"tolist() of {dtype} returned values of the wrong type")


@cases("transfer.scalars")
def from_a_view(context: CaseContext) -> None:
    """item() and tolist() of a view return the elements of the view."""
    base = context.to_device(torch.arange(12, dtype=torch.int64).reshape(3, 4))
    context.same(
        base[1, 2].item(), 6, "item() of an element of the tensor returned the wrong value"
    )
    text = "tolist() of a {} view returned wrong values"
    want = [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    context.same(base.t().tolist(), want, text.format("transposed"))
    context.same(base[:, ::2].tolist(), [[0, 2], [4, 6], [8, 10]], text.format("stepped"))


@cases("transfer.scalars")
def again_and_again(context: CaseContext) -> None:
    """item() is called 3,000 times for elements of a tensor, one call after the other. Each call returns the
    value of its element."""
    base = context.to_device(torch.arange(400, dtype=torch.float32).reshape(20, 20))
    wrong = [n for n in range(3000) if base[n % 19][n % 20].item() != n % 19 * 20 + n % 20]
    context.same(
        wrong[:1],
        [],
        "item() returned a wrong value; the list has the number of the first such call",
    )


@cases("transfer.scalars")
def truth(context: CaseContext) -> None:
    """bool() of a tensor with one element is False for the value zero and True for the value one. bool() of a
    tensor with several elements raises RuntimeError."""
    for dtype in (torch.bool, torch.int64, torch.float32):
        answers = bool(_there(context, 1, dtype)), bool(_there(context, 0, dtype))
        context.same(
            answers,
            (True, False),
            f"bool() of {dtype} tensors with the values 1 and 0 returned wrong answers",
        )
    for dtype in _dtypes(context):
        context.check(
            bool(_there(context, 1.0, dtype)) is True,
            f"bool() of a tensor of {dtype} with the value one is not True",
        )
    several = context.to_device(torch.ones(2))
    context.raises(
        RuntimeError,
        bool,
        several,
        text="bool() of two elements did not raise the documented exception",
    )


@cases("transfer.scalars")
def equality(context: CaseContext) -> None:
    """torch.equal returns the bool True if the shapes and values are the same, and the bool False otherwise."""
    for dtype in (torch.bool, torch.int64, torch.float32):
        several = [1.0, 0.0], [1.0, 0.0], [1.0, 1.0]
        one, same, other = (_there(context, values, dtype) for values in several)
        context.check(
            torch.equal(one, same) is True, f"torch.equal of equal {dtype} tensors is not True"
        )
        context.check(
            torch.equal(one, other) is False,
            f"torch.equal of different {dtype} tensors is not False",
        )
    shapes = torch.equal(context.to_device(torch.ones(2)), context.to_device(torch.ones(3)))
    context.check(shapes is False, "torch.equal of tensors of different shapes is not False")


@cases("transfer.scalars")
def printed(context: CaseContext) -> None:
    """repr() of a device tensor shows the same values as repr() of the CPU tensor, and names the device unless
    it is the default device."""
    for dtype in _dtypes(context):
        here = _here([[1.0, 2.0], [4.0, 1.0]], dtype)
        there = context.to_device(here)
        text = repr(there)
        want = repr(here).removeprefix("tensor(")[:-1].split(", dtype=")[0]
        context.check(
            want in text, f"repr of {dtype} does not show the values", expected=want, found=text
        )
        named = f"device='{there.device}'" in text
        default = there.device.type == torch.get_default_device().type
        context.check(named or default, "repr does not name the device", found=text)


#: Ways to read a value, and what each returns for 3. The device's subclass of torch.Tensor may define methods
#: of its own.
_READS: dict[str, tuple[Callable[[torch.Tensor], Any], Any]] = {
    "item": (lambda there: there.item(), 3.0),
    "tolist": (lambda there: there.tolist(), 3.0),
    "bool": (bool, True),
    "equal": (lambda there: torch.equal(there, torch.full_like(there, 3.0)), True),
    "repr": (lambda there: "3." in repr(there), True),
}


@cases("transfer.scalars", over={f"{n}_behind_work": (n,) for n in _READS}, requires={"streams"})
def behind_work(context: CaseContext, name: str) -> None:
    """item(), tolist(), bool(), torch.equal and repr() are called on a stream after a fill that is blocked.
    Each of them returns the value after the fill."""
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
        "reading the value did not wait for work that was queued before",
    )


@cases("transfer.scalars", over={f"{name}_after_work": (name,) for name in _READS})
def after_work(context: CaseContext, name: str) -> None:
    """item(), tolist(), bool(), torch.equal and repr() are called right after several in-place kernels were
    queued. Each of them returns the value after the kernels."""
    read, want = _READS[name]
    there = context.to_device(torch.zeros(()))
    for _ in range(20):
        there.fill_(1.0)
        there.add_(1.0).mul_(2.0).sub_(1.0)
        context.same(
            read(there), want, "reading the value did not wait for work that was queued before"
        )
        there.fill_(0.0)


@cases("transfer.numpy_refused", over={"numpy": ("numpy",), "array": ("array",)})
def refused(context: CaseContext, way: str) -> None:
    """numpy() and numpy.asarray of a device tensor raise TypeError. If the device is the CPU, the array shares
    the memory of the tensor."""
    import numpy as np

    there = context.to_device(torch.arange(6.0).reshape(2, 3))
    read: Callable[[Any], Any] = (lambda it: it.numpy()) if way == "numpy" else np.asarray
    if there.device.type == "cpu":
        # The clause is about other devices; on the CPU, numpy() is documented to share memory.
        got, want = read(there), (there.add_(1)).tolist()
        context.same(got.tolist(), want, "the array does not share the memory of the CPU tensor")
        return
    # For subclasses of torch.Tensor, torch itself raises RuntimeError.
    refusals = TypeError if type(there) is torch.Tensor else (TypeError, RuntimeError)
    context.raises(
        refusals,
        read,
        there,
        text="converting a device tensor to NumPy did not raise the documented exception",
    )
    for view in (there.t(), there.narrow(0, 1, 1), there.narrow(0, 0, 0)):
        context.raises(
            refusals,
            read,
            view,
            text="converting a view of a device tensor to NumPy did not raise the documented exception",
        )


@cases("transfer.numpy_refused")
def forced(context: CaseContext) -> None:
    """numpy(force=True) returns an array with the values of the tensor. The array is a copy, unless the
    device is the CPU."""
    there = context.to_device(torch.arange(6.0).reshape(2, 3))
    got = there.numpy(force=True)
    context.same(
        got.tolist(), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], "numpy(force=True) returned wrong values"
    )
    there.add_(1)
    shared = got.tolist()[0][0] == 1.0
    context.same(
        shared,
        there.device.type == "cpu",
        "the array of numpy(force=True) shares memory with a device tensor, or is a copy of a CPU tensor",
    )


@cases("transfer.dlpack")
def same_memory(context: CaseContext) -> None:
    """from_dlpack returns a tensor on the same device that shares the memory of the exported tensor. Writes to
    either tensor are visible in the other tensor."""
    for index in context.indices:
        given = context.to_device(torch.arange(24.0).reshape(4, 6), index)
        got = from_dlpack(given)
        context.same(got.device, given.device, "from_dlpack returned a tensor on the wrong device")
        context.equal(got, torch.arange(24.0).reshape(4, 6), "from_dlpack returned wrong values")
        if context.has("pointers"):
            context.same(
                got.data_ptr(),
                given.data_ptr(),
                "from_dlpack returned a tensor at a different address",
            )
        given.mul_(2)
        context.equal(
            got,
            torch.arange(24.0).reshape(4, 6) * 2,
            "the imported tensor does not show a write to the exported tensor",
        )
        got.fill_(3)
        context.equal(
            given,
            torch.full((4, 6), 3.0),
            "the exported tensor does not show a write to the imported tensor",
        )


@cases("transfer.dlpack", requires={"strides", "storage"})
def views(context: CaseContext) -> None:
    """from_dlpack of a view returns a tensor with the strides and the elements of the view, without copying the
    view."""
    want = torch.arange(60.0)
    base = context.to_device(want)
    for size, stride, offset in (((3, 4), (1, 5), 7), ((3, 4), (8, 2), 3), ((5,), (1,), 11)):
        given = base.as_strided(size, stride, offset)
        got = from_dlpack(given)
        context.same(tuple(got.stride()), stride, "from_dlpack changed the strides of a view")
        context.equal(
            got,
            want.as_strided(size, stride, offset),
            "from_dlpack of a view returned wrong elements",
        )
        if context.has("pointers"):
            context.same(
                got.data_ptr(),
                given.data_ptr(),
                "from_dlpack of a view returned a tensor at a different address",
            )


@cases("transfer.dlpack")
def dtypes(context: CaseContext) -> None:
    """from_dlpack keeps the values and the dtype of a tensor, for every dtype that PyTorch and DLPack have in
    common."""
    common = (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32"),
        *("float64", "bool", "complex64"),
    )
    for name in (each for each in common if each in context.descriptor.dtypes):
        values = torch.tensor([1, 0, 1]).to(getattr(torch, name))
        context.equal(
            from_dlpack(context.to_device(values)),
            values,
            f"from_dlpack of {name} returned wrong values",
        )


@cases("transfer.dlpack")
def outlives(context: CaseContext) -> None:
    """The tensor that from_dlpack returned keeps its memory alive after the exported tensor was deleted."""
    got = from_dlpack(context.to_device(torch.full((500,), 7.0)))
    others = [torch.zeros(500, device=context.device) for _ in range(8)]
    context.equal(
        got,
        torch.full((500,), 7.0),
        "deleting the exported tensor changed the values of the imported tensor",
    )
    del others


@cases("transfer.dlpack")
def names_the_device(context: CaseContext) -> None:
    """__dlpack_device__ returns a device type and the device index of the tensor. from_dlpack accepts the
    capsule that __dlpack__ returns."""
    for index in context.indices:
        given = context.to_device(torch.ones(2), index)
        kind, number = given.__dlpack_device__()
        context.same(int(number), index, "__dlpack_device__ returned the wrong device index")
        context.check(
            int(kind) > 0,
            "__dlpack_device__ returned a device type that DLPack does not have",
            found=kind,
        )
        context.equal(
            from_dlpack(given.__dlpack__()),
            torch.ones(2),
            "from_dlpack of a capsule returned wrong values",
        )


@cases("transfer.dlpack")
def grad_refused(context: CaseContext) -> None:
    """from_dlpack of a tensor that requires grad raises BufferError or RuntimeError. The detached tensor can be
    exported."""
    leaf, refusals = context.to_device(torch.ones(3)).requires_grad_(), (BufferError, RuntimeError)
    for given in (leaf, leaf * 2):
        text = "from_dlpack of a tensor that requires grad did not raise the documented exception"
        context.raises(refusals, from_dlpack, given, text=text)
    context.equal(
        from_dlpack(leaf.detach()),
        torch.ones(3),
        "from_dlpack of a detached tensor returned wrong values",
    )


_NAMED: dict[str, Any] = {"requires": {"streams", "native_handle"}}


@cases("transfer.dlpack", over={"consumer_waits": (0, False)}, **_NAMED)
@cases("transfer.dlpack", over={"consumer_waits_for_the_default": (0, True)}, **_NAMED)
@cases(
    "transfer.dlpack", over={"consumer_waits_on_the_other_index": (1, False)}, indices=2, **_NAMED
)
def consumer_waits(context: CaseContext, index: int, default: bool) -> None:
    """__dlpack__(stream=…) is called while the producer's stream is blocked. Work that the consumer queues on
    the named stream waits for the producer's work and sees its result."""
    consumer = context.stream(index)
    producer = context.current_stream(index) if default else context.stream(index)
    context.must(
        producer != consumer,
        "the producer's and the consumer's stream are the same",
        by="streams.identity",
    )
    given, target = (context.to_device(torch.zeros(500), index) for _ in range(2))
    target.copy_(given.fill_(0.0))
    context.settle()
    with context.hold(producer, needed=False) as hold:
        with producer:
            given.fill_(7.0)
            capsule = given.__dlpack__(stream=consumer.native_handle)
        with consumer:
            target.copy_(from_dlpack(capsule))
        hold.waits(consumer, "the consumer's stream did not wait for the producer's work")
    consumer.synchronize()
    context.equal(
        target,
        torch.full((500,), 7.0),
        "the consumer did not see the result of the producer's work",
    )


@cases("transfer.dlpack", **_NAMED)
def consumer_is_the_producer(context: CaseContext) -> None:
    """The stream that the consumer names is the stream of the producer. The exchange does not block, the work
    on that stream keeps its order, and no other stream waits."""
    stream, other = context.streams()
    given, target = (context.to_device(torch.zeros(500)) for _ in range(2))
    target.copy_(given.fill_(0.0))
    context.settle()
    with context.hold(stream, needed=False) as hold, stream:
        given.fill_(7.0)
        got = from_dlpack(given.__dlpack__(stream=stream.native_handle))
        target.copy_(got)
        got.fill_(8.0)
        hold.pending("work on the blocked stream finished while the stream was blocked", stream)
        context.check(context.ends(other), "the exchange blocked an unrelated stream")
    stream.synchronize()
    context.equal(target, torch.full((500,), 7.0), "the copy did not run between the two fills")
    context.equal(
        given,
        torch.full((500,), 8.0),
        "the exported tensor does not show a write to the imported tensor",
    )
