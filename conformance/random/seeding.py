"""random.global_seed: torch.manual_seed, fork_rng and checkpoint."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.device.judging import beginning, fresh, preparation

cases = Cases()


def _rand(context: Context, index: int = 0) -> torch.Tensor:
    device = context.device if context.kind == "cpu" else context.at(index)
    return context.from_device(torch.rand(50, device=device))


@cases("random.global_seed")
def every_index(context: Context) -> None:
    """torch.manual_seed seeds every index, whichever is current."""
    drawn = []
    for current in (context.indices[0], context.indices[-1]):
        for index in context.indices:
            _rand(context, index)
        if context.has("multi_device"):
            with context.on(current):
                torch.manual_seed(17)
        else:
            torch.manual_seed(17)
        drawn.append([_rand(context, index) for index in context.indices])
    for index in context.indices:
        context.equal(drawn[1][index], drawn[0][index], f"index {index} is seeded")
    torch.manual_seed(18)
    for index in context.indices:
        context.check(
            not torch.equal(_rand(context, index), drawn[0][index]),
            f"index {index}: another seed, other values",
        )


_BEFORE = """
import json
{preparation}
torch.manual_seed(29)
{beginning}


def drawn():
    return [torch.rand(4, device=where).tolist() for where in {devices!r}]


first = drawn()
torch.manual_seed(29)
print(json.dumps({{"drawn": [first, drawn()]}}))
"""


@cases("random.global_seed", slow=True)
def before_use(context: Context) -> None:
    """A seed that is given before the device is first used holds."""
    devices = [str(context.at(index)) for index in context.indices]
    code = _BEFORE.format(
        preparation=preparation(context), beginning=beginning(context), devices=devices
    )
    first, second = fresh(code)["drawn"]
    for index, device in enumerate(devices):
        context.same(first[index], second[index], f"{device}: the seed held")


def _forked(context: Context) -> Any:
    if context.kind == "cpu":  # which fork_rng always forks
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=list(context.indices), device_type=context.kind)


@cases("random.global_seed")
def fork_rng(context: Context) -> None:
    """What is drawn inside fork_rng leaves no trace behind it, on any index, where it raises too."""
    torch.manual_seed(41)
    want = [[_rand(context, index) for index in context.indices] for _ in range(2)]
    torch.manual_seed(41)
    with _forked(context):
        torch.manual_seed(5)
        for index in context.indices:
            _rand(context, index)
    for index in context.indices:
        context.equal(_rand(context, index), want[0][index], f"index {index}, behind fork_rng")
    try:
        with _forked(context):
            for index in context.indices:
                _rand(context, index)
            raise KeyError("ours")
    except KeyError:
        pass
    for index in context.indices:
        context.equal(_rand(context, index), want[1][index], f"index {index}, where it raised")


@cases("random.global_seed", slow=True, over={"reentrant": (True,), "not_reentrant": (False,)})
def checkpointed(context: Context, reentrant: bool) -> None:
    """A checkpoint draws the same numbers when it is computed again for backward."""
    torch.manual_seed(6)
    x = context.to_device(torch.ones(400)).requires_grad_()

    def drop(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(value * 2, 0.5)

    y = checkpoint(drop, x, use_reentrant=reentrant)
    torch.manual_seed(12)
    want = [_rand(context) for _ in range(2)]
    torch.manual_seed(12)
    context.equal(_rand(context), want[0], "numbers are drawn between forward and backward")
    y.sum().backward()
    assert x.grad is not None
    # An element is 4 where it was kept (2 * 1 / 0.5), and its gradient then is 4 too.
    context.equal(x.grad, y.detach(), "gradients and values have one mask")
    context.equal(_rand(context), want[1], "backward leaves the state as it was")
