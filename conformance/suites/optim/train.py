"""Checks of the clause optim.train: ten training steps of small networks must give the CPU's float64 results and be
reproducible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.optim.parameters import FLAGS, must_be_taken
from devices.failure import Kind

cases = Cases(Kind.VALUES)

STEPS = 10
BATCHES = 3


class Convolutional(nn.Module):
    """A convolutional network with batch norm. Strided convolutions replace pooling, whose backward may be
    nondeterministic."""

    def __init__(self) -> None:
        super().__init__()
        # No bias: batch norm subtracts it again, so its gradient would be rounding errors only.
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm_1 = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 3, stride=2, bias=False)
        self.norm_2 = nn.BatchNorm2d(12)
        self.last = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm_1(self.first(x)))
        x = F.relu(self.norm_2(self.second(x)))
        found: torch.Tensor = self.last(x.mean((2, 3)))
        return found


class Transformer(nn.Module):
    """A network of an embedding, one TransformerEncoderLayer, a LayerNorm and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.block(self.tokens(x))).mean(1))
        return found


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 5)
    )


class Task(NamedTuple):
    """A training task: a network, its inputs, and the optimiser that trains the network. SGD is included because Adam
    is invariant to a scaled gradient. Adam's eps is so large that rounding errors of gradients that should be zero,
    such as that of a key's bias, do not cause steps."""

    network: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], torch.Tensor]
    optimiser: str
    arguments: dict[str, Any]
    channels_last: bool = False
    keeps_gradients: bool = False  # True: zero_grad(set_to_none=False)


TASKS = {
    "mlp": Task(
        perceptron,
        lambda g: torch.randn(24, 12, generator=g),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
        keeps_gradients=True,
    ),
    "convnet": Task(
        Convolutional,
        lambda g: torch.randn(8, 3, 9, 9, generator=g),
        "AdamW",
        {"lr": 0.02, "eps": 1e-3, "weight_decay": 0.1},
        channels_last=True,
    ),
    "convnet_sgd": Task(
        Convolutional,
        lambda g: torch.randn(8, 3, 9, 9, generator=g),
        "SGD",
        {"lr": 0.1, "momentum": 0.5},
        channels_last=True,
    ),
    "transformer_sgd": Task(
        Transformer,
        lambda g: torch.randint(0, 11, (12, 7), generator=g),
        "SGD",
        {"lr": 0.2, "momentum": 0.5},
    ),
    "transformer": Task(
        Transformer,
        lambda g: torch.randint(0, 11, (12, 7), generator=g),
        "Adam",
        {"lr": 0.02, "eps": 1e-3, "amsgrad": True},
    ),
}


class Run(NamedTuple):
    """The losses and the final state_dict of a training, in float64 on the CPU."""

    losses: list[float]
    state: dict[str, torch.Tensor]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def network_of(task: Task) -> nn.Module:
    """Return the network of a task with its initial parameters, in float32 on the CPU."""
    with _seeded(5):
        return task.network()


def data_of(task: Task) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a list of the (inputs, classes) of each batch of a task."""
    generator = torch.Generator().manual_seed(8)
    inputs = [task.inputs(generator) for _ in range(BATCHES)]
    return [(x, torch.randint(0, 5, x.shape[:1], generator=generator)) for x in inputs]


def trained(
    task: Task,
    network: nn.Module,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    flags: dict[str, bool],
) -> Run:
    """Train the network for STEPS steps on the device of its parameters, and return the losses and the final state."""
    made = getattr(torch.optim, task.optimiser)(network.parameters(), **task.arguments, **flags)
    losses = []
    for step in range(STEPS):
        x, classes = batches[step % BATCHES]
        made.zero_grad(set_to_none=not task.keeps_gradients)
        loss = F.cross_entropy(network(x), classes)
        loss.backward()
        made.step()
        losses.append(loss.detach())
    state = {key: value.detach().cpu().double() for key, value in network.state_dict().items()}
    return Run([float(each.cpu()) for each in losses], state)


class Expected(NamedTuple):
    """The result of training on the CPU in float64, and the accepted differences, which are measured by trainings from
    slightly different initial parameters."""

    first: dict[str, torch.Tensor]
    run: Run
    losses: list[float]  # the accepted difference of each loss
    state: dict[str, float]


#: Relative change of the initial parameters: 16 float32 roundings, more than the rounding errors of ten steps.
CHANGE = 2.0**-20
#: Number of changed starts. They need not include the worst direction, so four times the largest difference is accepted.
STARTS, FACTOR = 3, 4.0
#: Additional accepted error, relative to the loss and to the change of a parameter. An input of a ReLU that is within
#: rounding of zero may fall on either side, for one row of a few hundred.
LEAST = 1e-4, 1e-3


@lru_cache(maxsize=8)
def expected(name: str) -> Expected:
    task = TASKS[name]
    batches = [
        (x.double() if x.is_floating_point() else x, classes) for x, classes in data_of(task)
    ]
    first = {key: value.clone().double() for key, value in network_of(task).state_dict().items()}
    run = trained(task, network_of(task).double(), batches, {"foreach": False})
    generator = torch.Generator().manual_seed(3)
    others = []
    for _ in range(STARTS):
        network = network_of(task).double()
        with torch.no_grad():
            for each in network.parameters():
                drawn = torch.rand(each.shape, dtype=torch.float64, generator=generator)
                each.mul_(1 + CHANGE * (2 * drawn - 1))
        others.append(trained(task, network, batches, {"foreach": False}))
    losses = [
        LEAST[0] * abs(loss) + FACTOR * max(abs(other.losses[step] - loss) for other in others)
        for step, loss in enumerate(run.losses)
    ]
    state = {}
    for key, last in run.state.items():
        spread = max(float((other.state[key] - last).abs().max()) for other in others)
        changed = float((last - first[key]).abs().max())
        state[key] = LEAST[1] * changed + FACTOR * spread + 1e-6
    return Expected(first, run, losses, state)


LOSS = "the loss of a step differs from the CPU's"
LEFT = "the trained network differs from the CPU's"


def on_device(context: CaseContext, task: Task, flags: dict[str, bool]) -> Run:
    """Train the network of a task on the device, in channels_last if the task requires that format, and return the
    result."""
    network = network_of(task).to(context.device)
    batches = [(context.to_device(x), context.to_device(y)) for x, y in data_of(task)]
    if task.channels_last and context.has("strides"):
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]
    return trained(task, network, batches, flags)


@cases(
    "optim.train",
    over={
        f"{name}_{way}": (name, way) for name in TASKS for way in ("default", "foreach", "fused")
    },
)
def follows(context: CaseContext, name: str, way: str) -> None:
    """Train a small network for ten steps: losses, parameters and running statistics must equal those of a training on
    the CPU in float64, up to rounding."""
    must_be_taken(context, way)
    want = expected(name)
    found = on_device(context, TASKS[name], FLAGS[way])
    _judge(context, found, want)


def _judge(context: CaseContext, found: Run, want: Expected) -> None:
    rows = zip(found.losses, want.run.losses, want.losses, strict=True)
    for step, (mine, theirs, allowed) in enumerate(rows):
        near = abs(mine - theirs) <= allowed
        wanted = f"{theirs:.7g} within {allowed:.1g}"
        context.check(near, LOSS, expected=wanted, found=mine, at=f"step {step}")
    context.same(sorted(found.state), sorted(want.run.state), LEFT, Kind.STATE)
    for key, theirs_all in want.run.state.items():
        allowed = want.state[key]
        context.assert_close(
            found.state[key], theirs_all, LEFT, key, atol=allowed, check_dtype=False
        )


@contextmanager
def deterministic() -> Iterator[None]:
    """Switch deterministic algorithms on for a ``with`` block. Ops without a deterministic algorithm only warn, and the
    warnings are suppressed."""
    before = torch.are_deterministic_algorithms_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


@cases(
    "optim.train",
    over={f"{name}_twice": (name,) for name in TASKS},
    requires={"deterministic_algorithms"},
)
def twice(context: CaseContext, name: str) -> None:
    """Train a small network twice with deterministic algorithms: losses and final parameters must be equal bit for
    bit."""
    task = TASKS[name]
    with deterministic():
        one, two = (on_device(context, task, {}) for _ in range(2))
    context.same(two.losses, one.losses, "two equal trainings gave different losses")
    for key, first in one.state.items():
        context.equal(
            two.state[key], first, "two equal trainings gave different parameters or buffers", key
        )
