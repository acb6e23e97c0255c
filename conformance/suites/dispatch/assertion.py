"""Case of the clause dispatch.device_assert: an op that gets an index out of range raises an error instead of
accessing memory outside of the tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.NOT_RAISED)


@cases("dispatch.device_assert", own_process=True, seconds=120.0)
def out_of_range(context: CaseContext) -> None:
    """Several ops are called one after another with an index out of range. Each op raises an error, at the latest at
    the next synchronize. This also holds after earlier ops have raised errors."""
    three = context.to_device(torch.tensor([1.0, 2.0, 3.0]))
    table = context.to_device(torch.ones(3, 2))
    far = context.to_device(torch.tensor([7]))
    below = context.to_device(torch.tensor([-7]))
    calls: dict[str, Callable[[], torch.Tensor]] = {  # index 7 or -7 of a tensor with 3 elements
        "index_select": lambda: three.index_select(0, far),
        "index_select with a negative index": lambda: three.index_select(0, below),
        "gather": lambda: three.gather(0, far),
        "take": lambda: three.take(far),
        "indexing": lambda: three[far],
        "indexing with a negative index": lambda: three[below],
        "embedding": lambda: torch.nn.functional.embedding(far, table),
        "scatter": lambda: three.scatter(0, far, 5.0),
        "index_add": lambda: three.index_add(0, far, far.to(torch.float32)),
    }
    accepted = []
    for name, call in calls.items():
        try:
            result = call()
            context.settle()
        except Exception:  # an assertion on the device may raise any type
            continue
        accepted.append(f"{name} gave {context.from_device(result).tolist()}")
    context.check(
        not accepted, "ops that got an index out of range raised no error", found=accepted
    )
