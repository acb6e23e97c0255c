"""Networks for the cases of distributed training, and the training in one process that gives the expected result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from conformance.suites.distributed.groups import Ranks

Tensor = torch.Tensor

#: Relative and absolute tolerance. The ranks sum gradients in another order than one process does, which costs a few units in
#: the last place of the largest term; an error of a training step is far larger.
RTOL, ATOL = 1e-4, 1e-5
#: The learning rate and the momentum. Momentum shows a gradient that was wrong in an earlier step.
RATE, MOMENTUM = 0.1, 0.9
STEPS = 3


class Perceptron(nn.Module):
    """A network of two layers, a branch that some calls skip, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.branch, self.never = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        out: Tensor = self.last(self.first(x).relu())
        return out + self.branch(x) if branch else out


class Complete(Perceptron):
    """The network ``Perceptron`` without the layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        del self.never


class Transposed(nn.Module):
    """A network of layers whose weights are stored in column-major order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        for layer in (self.first, self.last):
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        out: Tensor = self.last(self.first(x).relu())
        return out


class Convolutions(nn.Module):
    """A network of two convolutions whose weights are channels_last, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 2)
        self.last = nn.Linear(3, 5)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        images = x.view(-1, 2, 4, 4).to(memory_format=torch.channels_last)
        out: Tensor = self.last(self.second(self.first(images).relu()).flatten(1))
        return out


class WithBuffers(nn.Module):
    """A network of a layer, and a buffer that every call of forward changes."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 5)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        with torch.no_grad():
            self.calls.add_(x.detach().sum())
        out: Tensor = self.last(x)
        return out


class Mixed(nn.Module):
    """A network with layers of two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5).double()

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        out: Tensor = self.last(self.first(x).relu().double())
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (Perceptron, Complete, Transposed, Convolutions, WithBuffers, Mixed)
}


@dataclass(frozen=True)
class Plan:
    """A plan for training, both on several ranks and in one process: the name of the network, the number of batches
    per step, and a function that says whether a batch of a rank uses the network's branch."""

    network: str = "Complete"
    batches: int = 1
    branch: Callable[[int, int], bool] = lambda rank, batch: True
    options: dict[str, Any] = field(default_factory=dict)  # of DistributedDataParallel
    to_none: bool = True  # zero_grad(set_to_none=…)


def network(name: str, ranks: Ranks) -> nn.Module:
    """Returns a network on the device of the rank. Its parameters are the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        made = NETWORKS[name]()
    if name == "Convolutions":
        made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return made.to(ranks.device)


def batch(ranks: Ranks, rank: int, step: int, number: int, columns: int = 6) -> Tensor:
    """Returns the input of rank ``rank`` for batch ``number`` of a step. The batches of all ranks have the same
    size."""
    generator = torch.Generator().manual_seed(1000 * step + 100 * number + rank)
    return ranks.put(torch.randn(4, columns, generator=generator))


def columns(plan: Plan) -> int:
    return 32 if plan.network == "Convolutions" else 6


def loss(out: Tensor) -> Tensor:
    """Returns a loss in which each output has a different weight."""
    weights = torch.linspace(1.0, 2.0, out.shape[-1], device=out.device)
    return ((out * weights).sin() * weights).mean()


def optimiser(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def in_one_process(ranks: Ranks, plan: Plan) -> Iterator[nn.Module]:
    """Trains a network in one process on the batches of all ranks. Yields the network after the backward pass of each
    step, and once more after the last step."""
    made = network(plan.network, ranks)
    steps = optimiser(made.parameters())
    for step in range(STEPS):
        steps.zero_grad(set_to_none=plan.to_none)
        for number in range(plan.batches):
            for rank in range(ranks.count):
                x = batch(ranks, rank, step, number, columns(plan))
                (loss(made(x, plan.branch(rank, number))) / ranks.count).backward()
        yield made
        steps.step()
    yield made
