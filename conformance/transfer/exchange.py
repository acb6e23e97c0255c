"""transfer.dlpack: one memory, two libraries."""

from __future__ import annotations

import torch
from torch.utils.dlpack import from_dlpack

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends_early

cases = Cases()


@cases("transfer.dlpack")
def same_memory(context: Context) -> None:
    """from_dlpack gives a tensor over the same elements, on the same device, without a copy."""
    for index in context.indices:
        given = context.to_device(torch.arange(24.0).reshape(4, 6), index)
        got = from_dlpack(given)
        context.same(got.device, given.device, "it is on the device")
        context.equal(got, torch.arange(24.0).reshape(4, 6), "it has the values")
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
        context.same(got.data_ptr(), given.data_ptr(), "the first is where it was")


@cases("transfer.dlpack")
def dtypes(context: Context) -> None:
    """Every common dtype is exchanged."""
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
                 "float64", "bool", "complex64"):  # fmt: skip
        if name not in context.descriptor.dtypes:
            continue
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
        context.check(int(kind) > 0, "the type is one of DLPack's", got=kind)
        got = from_dlpack(given.__dlpack__())
        context.equal(got, torch.ones(2), "a capsule holds the tensor")


@cases("transfer.dlpack")
def grad_refused(context: Context) -> None:
    """A tensor that requires grad is refused."""
    leaf = context.to_device(torch.ones(3)).requires_grad_()
    for given in (leaf, leaf * 2):
        context.raises(
            (BufferError, RuntimeError),
            from_dlpack,
            given,
            text="a tensor that requires grad is not exported",
        )
    context.equal(from_dlpack(leaf.detach()), torch.ones(3), "detached, it is")


@cases("transfer.dlpack", requires={"streams", "native_handle"})
def consumer_waits(context: Context) -> None:
    """Work of the stream that the consumer names sees the producer's work before."""
    producer, consumer = context.stream(), context.stream()
    context.must(producer != consumer, "the streams are two")
    given = context.to_device(torch.zeros(500))
    target = context.to_device(torch.zeros(500))
    target.copy_(given.fill_(0.0))
    context.settle()
    with context.hold(producer) as hold:
        with producer:
            given.fill_(7.0)
            capsule = given.__dlpack__(stream=consumer.native_handle)
        with consumer:
            target.copy_(from_dlpack(capsule))
        context.check(not ends_early(consumer, hold), "the consumer's stream waits")
    consumer.synchronize()
    context.equal(target, torch.full((500,), 7.0), "it sees the producer's work")
