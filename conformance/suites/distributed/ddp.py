"""Cases about DistributedDataParallel, ZeRO and SyncBatchNorm: the result of training on several ranks must equal that
of one process which trains on the joined batch."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.distributed.groups import Ranks, join
from conformance.suites.distributed.training import (
    ATOL,
    MOMENTUM,
    RATE,
    RTOL,
    STEPS,
    Plan,
    batch,
    columns,
    in_one_process,
    loss,
    network,
    optimiser,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Tensor = torch.Tensor

#: A bucket for each parameter or two.
SMALL = {"bucket_cap_mb": 0.0001}

PLANS = {
    "plain": Plan(),
    "bucket_views": Plan(options={"gradient_as_bucket_view": True}),
    "small_buckets": Plan(options=SMALL),
    "gradients_kept": Plan(to_none=False),
    "static_graph": Plan(options={"static_graph": True}),
    "unused": Plan("Perceptron", options={"find_unused_parameters": True}),
    "unused_on_one_rank": Plan(
        "Complete",
        branch=lambda rank, number: rank == 0,
        options={"find_unused_parameters": True},
    ),
    "no_sync": Plan(batches=3),
    "no_sync_views": Plan(batches=2, options={"gradient_as_bucket_view": True}),
    "no_sync_static_graph": Plan(batches=2, options={"static_graph": True}),
    "no_sync_unused": Plan(
        batches=2,
        branch=lambda rank, number: number == 0,
        options={"find_unused_parameters": True},
    ),
    "channels_last": Plan("Convolutions"),
    "channels_last_views": Plan("Convolutions", options={"gradient_as_bucket_view": True, **SMALL}),
    "transposed": Plan("Transposed"),
    "transposed_views": Plan("Transposed", options={"gradient_as_bucket_view": True}),
    "mixed_dtypes": Plan("Mixed"),
}
#: The plans of plan quick.
QUICK = (
    "plain",
    "bucket_views",
    "small_buckets",
    "static_graph",
    "unused",
    "no_sync",
    "channels_last_views",
    "transposed",
)


def check_gradients(ranks: Ranks, found: nn.Module, want: nn.Module, at: str) -> None:
    """Checks that the gradients of all parameters equal those of the network ``want``, and have the strides of their
    parameters."""
    context = ranks.context
    for (name, mine), theirs in zip(found.named_parameters(), want.parameters()):
        where = f"{at}, {name}"
        if theirs.grad is None:
            zero = mine.grad is None or not bool(mine.grad.any())
            context.check(zero, "a parameter that is never used has a gradient", at=where)
            continue
        text = "a parameter that was used has no gradient after backward"
        context.check(mine.grad is not None, text, at=where)
        assert mine.grad is not None
        text = "a gradient differs from that of one process that trains on the joined batch"
        context.assert_close(mine.grad, theirs.grad, text, where, rtol=RTOL, atol=ATOL)
        if context.opened.lays_out:
            strides = mine.grad.stride(), mine.stride()
            text = "the strides of a gradient differ from those of its parameter"
            context.same(strides[0], strides[1], text, Kind.STRIDES, where)


def check_parameters(ranks: Ranks, found: nn.Module, want: nn.Module, at: str) -> None:
    for (name, mine), theirs in zip(found.named_parameters(), want.parameters()):
        text = "a parameter differs from that of one process that trained on the joined batch"
        where = f"{at}, {name}"
        ranks.context.assert_close(mine, theirs, text, where, rtol=RTOL, atol=ATOL)


def _trains(context: CaseContext, name: str) -> None:
    ranks, plan = join(context), PLANS[name]
    if plan.network == "Mixed" and "float64" not in context.descriptor.dtypes:
        raise NotDeclared("by declaration: the descriptor does not declare float64")
    made = network(plan.network, ranks)
    wrapped = DistributedDataParallel(made, **plan.options)
    steps, one = optimiser(wrapped.parameters()), in_one_process(ranks, plan)
    for step in range(STEPS):
        steps.zero_grad(set_to_none=plan.to_none)
        for number in range(plan.batches):
            last = number == plan.batches - 1
            with nullcontext() if last else wrapped.no_sync():
                x = batch(ranks, ranks.index, step, number, columns(plan))
                loss(wrapped(x, plan.branch(ranks.index, number))).backward()
        want = next(one)
        check_gradients(ranks, made, want, f"step {step}")
        if plan.options.get("gradient_as_bucket_view") and context.has("pointers"):
            _check_shared(ranks, made)
        steps.step()
    check_parameters(ranks, made, next(one), "at the end")


def _check_shared(ranks: Ranks, made: nn.Module) -> None:
    """Checks that gradients share storages with each other, as they do if they are views of the reducer's buckets."""
    gradients = [each.grad for each in made.parameters() if each.grad is not None]
    storages = {each.untyped_storage().data_ptr() for each in gradients}
    text = "gradients do not share storages, although gradient_as_bucket_view=True was given"
    ranks.context.check(
        len(storages) < len(gradients),
        text,
        expected=f"fewer storages than {len(gradients)} gradients",
        found=len(storages),
        kind=Kind.NOT_ALIASED,
    )


@cases("distributed.ddp", over={f"ddp_{name}": (name,) for name in PLANS if name in QUICK}, ranks=2)
@cases(
    "distributed.ddp",
    over={f"ddp_{name}": (name,) for name in PLANS if name not in QUICK},
    ranks=2,
    more=True,
)
@cases(
    "distributed.ddp",
    over={f"ddp_{name}": (name,) for name in ("plain", "unused_on_one_rank", "no_sync_views")},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def trains(context: CaseContext, name: str, count: int = 2) -> None:
    """DistributedDataParallel trains a network for three steps. Gradients and parameters equal those of one process
    that trains on the batches of all ranks, and gradients have the strides of their parameters."""
    context.pooled(_trains, name, ranks=count)


def _buffers(context: CaseContext) -> None:
    ranks = join(context)
    wrapped = DistributedDataParallel(network("WithBuffers", ranks))
    expected = torch.zeros(3)
    for step in range(2):
        x = batch(ranks, ranks.index, step, 0)
        first = batch(ranks, 0, step, 0)
        loss(wrapped(x)).backward()
        before = expected.clone()
        expected += context.from_device(first.sum())
    wrapped(batch(ranks, ranks.index, 9, 0))
    mine = before + context.from_device(batch(ranks, 0, 1, 0).sum())
    found = wrapped.module.calls
    want = mine + context.from_device(batch(ranks, ranks.index, 9, 0).sum())
    text = "when forward begins, the buffers of a rank differ from those of rank 0"
    context.assert_close(found, want, text, rtol=RTOL, atol=ATOL)


def _hook(context: CaseContext) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ranks, plan = join(context), Plan()
    for name, tolerance in (("allreduce_hook", ATOL), ("fp16_compress_hook", 1e-2)):
        made = network(plan.network, ranks)
        wrapped = DistributedDataParallel(made)
        wrapped.register_comm_hook(None, getattr(default_hooks, name))
        loss(wrapped(batch(ranks, ranks.index, 0, 0))).backward()
        for (parameter, mine), theirs in zip(
            made.named_parameters(), next(in_one_process(ranks, plan)).parameters()
        ):
            assert mine.grad is not None
            assert theirs.grad is not None
            text = (
                "with a communication hook, a gradient differs from that of one process "
                "that trains on the joined batch"
            )
            at = f"{name}, {parameter}"
            context.assert_close(mine.grad, theirs.grad, text, at, rtol=1e-2, atol=tolerance)


def _zero(context: CaseContext) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's module uses torch.jit.script, which is deprecated
        from torch.distributed.optim import ZeroRedundancyOptimizer

    ranks, plan = join(context), Plan()
    made = network(plan.network, ranks)
    wrapped: Any = DistributedDataParallel(made)
    steps = ZeroRedundancyOptimizer(
        made.parameters(), optimizer_class=torch.optim.SGD, lr=RATE, momentum=MOMENTUM
    )
    one = in_one_process(ranks, plan)
    for step in range(STEPS):
        steps.zero_grad()
        loss(wrapped(batch(ranks, ranks.index, step, 0))).backward()
        next(one)
        steps.step()
    check_parameters(ranks, made, next(one), "at the end")


@cases("distributed.ddp", over={"buffers": ("_buffers",), "zero": ("_zero",)}, ranks=2)
@cases("distributed.ddp", over={"communication_hooks": ("_hook",)}, ranks=2, more=True)
def wrappers(context: CaseContext, function: str) -> None:
    """When forward begins, the buffers of all ranks are those of rank 0. Training with a communication hook, and with
    an optimiser whose state is divided among the ranks, gives the result of training in one process."""
    context.pooled(globals()[function], ranks=2)


# -- SyncBatchNorm

#: The numbers of images of the ranks, and the layouts of the input and of the cotangent.
IMAGES = {
    "even": ((3, 3, 3, 3), "contiguous", "contiguous"),
    "uneven": ((1, 4, 2, 3), "contiguous", "contiguous"),
    "channels_last": ((2, 3, 1, 2), "channels_last", "channels_last"),
    "channels_last_input": ((2, 2, 3, 1), "channels_last", "contiguous"),
    "channels_last_cotangent": ((2, 3, 2, 2), "contiguous", "channels_last"),
}


def _normalises(context: CaseContext, name: str) -> None:
    ranks = join(context)
    images, layout, of_cotangent = IMAGES[name]
    sizes = images[: ranks.count]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(sum(sizes), 3, 4, 5, generator=generator) * 3 + 1
    cotangent = torch.randn(x.shape, generator=generator)
    plain = nn.BatchNorm2d(3)
    with torch.no_grad():
        plain.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        plain.bias.copy_(torch.tensor([-1.0, 0.0, 3.0]))
    synced = nn.SyncBatchNorm(3)
    synced.load_state_dict(plain.state_dict())
    synced = synced.to(ranks.device)
    mine = x.split(sizes)[ranks.index]
    given = context.lay(mine, layout, ranks.device_index).requires_grad_()
    try:
        out = synced(given)
    except ValueError as error:
        if "expected input tensor to be on" in str(error):
            raise NotDeclared(
                "torch's SyncBatchNorm takes no tensors of this device type"
            ) from None
        raise
    grad = cotangent.split(sizes)[ranks.index]
    out.backward(context.lay(grad, of_cotangent, ranks.device_index))
    whole = x.clone().requires_grad_()
    want = plain(whole)
    want.backward(cotangent)
    assert given.grad is not None
    assert whole.grad is not None
    pairs = [
        ("the output", out, want.split(sizes)[ranks.index]),
        ("the gradient of the input", given.grad, whole.grad.split(sizes)[ranks.index]),
        ("the running mean", synced.running_mean, plain.running_mean),
        ("the running variance", synced.running_var, plain.running_var),
    ]
    for parameter in ("weight", "bias"):
        total = getattr(synced, parameter).grad
        dist.all_reduce(total)
        text = f"the gradients of the {parameter}, summed over the ranks,"
        pairs.append((text, total, getattr(plain, parameter).grad))
    for what, found, expected in pairs:
        text = "SyncBatchNorm differs from BatchNorm in one process on the joined batch"
        context.assert_close(found, expected, text, what, rtol=RTOL, atol=ATOL)


@cases(
    "distributed.ddp",
    over={f"sync_batch_norm_{name}": (name,) for name in ("uneven", "channels_last_cotangent")},
    ranks=2,
)
@cases(
    "distributed.ddp",
    over={
        f"sync_batch_norm_{name}": (name,)
        for name in ("even", "channels_last", "channels_last_input")
    },
    ranks=2,
    more=True,
)
@cases(
    "distributed.ddp",
    over={"sync_batch_norm_uneven": ("uneven",)},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def normalises(context: CaseContext, name: str, count: int = 2) -> None:
    """SyncBatchNorm normalises batches of equal or different sizes, with inputs and output gradients that are
    contiguous or in channels_last. Outputs, gradients and running statistics equal those of BatchNorm in one process on
    the joined batch."""
    context.pooled(_normalises, name, ranks=count)
