"""Each module of torch's database computes and trains as on the CPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import NotDeclared
from conformance.suites.nn.trained import (
    WAYS,
    Laid,
    Way,
    close,
    cotangents,
    differentiable,
    replaced,
    tensors_in,
    wide,
)
from devices.failure import Kind
from opinfo.module_catalog import ModuleEntry, ModuleSample, module_catalogue

cases = Cases(Kind.VALUES)

#: The modules of the database of torch 2.13. A test compares the two: to load the database takes seconds, and a plan is
#: made without it.
NAMES = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CELU",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "ELU",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "L1Loss",
    "SmoothL1Loss",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "Linear",
    "Bilinear",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "KLDivLoss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiMarginLoss",
    "SoftMarginLoss",
    "MultiLabelSoftMarginLoss",
    "NLLLoss",
    "GaussianNLLLoss",
    "PoissonNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "LinearCrossEntropyLoss",
    "CTCLoss",
    "GELU",
    "GLU",
    "GroupNorm",
    "Hardshrink",
    "Hardswish",
    "Hardtanh",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LocalResponseNorm",
    "LayerNorm",
    "RMSNorm",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "Transformer",
    "MultiheadAttention",
    "Embedding",
    "ReLU",
    "LeakyReLU",
    "ReLU6",
    "PReLU",
    "RNNCell",
    "GRUCell",
    "LSTMCell",
    "Sigmoid",
    "LogSigmoid",
    "SiLU",
    "Softmax",
    "Softmax2d",
    "LogSoftmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "Mish",
    "RNN",
    "GRU",
    "LSTM",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "SELU",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
]

#: Runs of a module in each mode, at least: a module with fewer samples is given some in several ways.
RUNS = 8

#: And at most; the modules that have more samples, all of which the larger plans take.
MOST = 12
LONG = [
    "AvgPool3d",
    "NLLLoss",
    "CrossEntropyLoss",
    "LinearCrossEntropyLoss",
    "CTCLoss",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "Transformer",
    "MultiheadAttention",
    "RNN",
    "GRU",
    "LSTM",
]


@cases("nn.modules", over={f"{name}.every_sample": (name, 1000) for name in LONG}, more=True)
@cases("nn.modules", over={name: (name, MOST) for name in NAMES})
def as_on_the_cpu(context: Context, name: str, most: int) -> None:
    """Results, gradients and running statistics equal the CPU's, in training and in eval, for inputs and cotangents in
    several layouts; inputs and cotangents stay as they are."""
    entry = module_catalogue().get(name)
    if entry is None:
        raise NotDeclared(f"the module database of torch {torch.__version__} has no {name}")
    for training in (True, False):
        for number, sample, way in runs(entry, most, training=training):
            mode = "training" if training else "eval"
            run_once(context, entry, sample, way, training, f"sample {number} in {mode}, {way}")


def runs(
    entry: ModuleEntry, most: int, *, training: bool
) -> Iterator[tuple[int, ModuleSample, Way]]:
    """Which samples are given in which ways: each way to one at least. Of many samples every n-th is taken, with another
    remainder in eval than in training."""
    with seeded_globally(20):  # upstream draws from the default generator
        samples = list(enumerate(entry.samples(training=training)))
    step = -(-len(samples) // most)
    taken = samples[(0 if training else step // 2) :: step]
    for number in range(max(len(taken), RUNS)):
        # The ways move on by one with each round, or few samples would meet the same few ways.
        way = WAYS[(number + number // len(taken)) % len(WAYS)]
        yield *taken[number % len(taken)], way


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """The CPU's default generator with this seed, and as it was afterwards."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def seeded(context: Context, at: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, context.seed + at)))


def built(entry: ModuleEntry, sample: ModuleSample, generator: torch.Generator) -> torch.nn.Module:
    """The module on the CPU in float32, with parameters and buffers that are not what they begin with: a weight of 1, a
    bias of 0 and a mean of 0 would hide that they are not used."""
    with warnings.catch_warnings(), seeded_globally(7):
        warnings.simplefilter("ignore")  # of upstream's own choices
        module: torch.nn.Module = entry.build(*copied(sample.args), **copied(sample.kwargs)).float()
    if is_lazy(module):
        module(*detached(sample.inputs), **detached(sample.named))
        module.float()
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            if each.is_floating_point():
                each.add_(0.1 + 0.4 * torch.rand(each.shape, generator=generator))
    return module


def is_lazy(module: torch.nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin)


def copied(value: Any) -> Any:
    """The arguments of a class: modules among them are copied, as they become part of the module that is made."""
    return copy.deepcopy(value)


def detached(value: Any) -> Any:
    return replaced(value, lambda each: each.detach())


def run_once(
    context: Context, entry: ModuleEntry, sample: ModuleSample, way: Way, training: bool, at: str
) -> None:
    generator = seeded(context, at)
    module = built(entry, sample, generator).train(training)
    reference = copy.deepcopy(module).double()
    there = moved(context, module, way)
    before = {key: value.clone() for key, value in there.state_dict().items()}

    laid = Laid(context)
    given, want_given = arguments(laid, sample, way)
    for each in (there, reference):
        each.requires_grad_(way.needs != "inputs")
    with warnings.catch_warnings(), seeded_globally(3):
        warnings.simplefilter("ignore")  # the CPU's choices of kernels
        want = reference(*want_given[0], **want_given[1])
        got = there(*given[0], **given[1])
    compare(context, list(tensors_in(got)), list(tensors_in(want)), "an output is the CPU's", at)
    state_of(context, there, reference, before, at)

    starts, want_starts = differentiable(got), differentiable(want)
    context.same(
        len(starts), len(want_starts), "the outputs that have a gradient are the CPU's", at=at
    )
    leaves, want_leaves = leaves_of(there, given), leaves_of(reference, want_given)
    if want_starts and want_leaves:
        mine, theirs = cotangents(laid, want_starts, way.cotangent, generator)
        found = torch.autograd.grad(starts, leaves, mine, allow_unused=True)
        expected = torch.autograd.grad(want_starts, want_leaves, theirs, allow_unused=True)
        for one, other in zip(found, expected, strict=True):
            context.same(one is None, other is None, "a gradient is None where the CPU's is", at=at)
            if one is not None and other is not None:
                close(context, one, other, "a gradient is the CPU's", at)
    laid.intact(at)


def moved(context: Context, module: torch.nn.Module, way: Way) -> torch.nn.Module:
    there = copy.deepcopy(module)
    if way.channels_last:
        there = in_channels_last(there)
    return there.to(context.device)


def in_channels_last(module: torch.nn.Module) -> torch.nn.Module:
    ranks = {each.dim() for each in module.parameters()}
    move: Any = module.to
    form = torch.channels_last_3d if 5 in ranks else torch.channels_last
    made: torch.nn.Module = move(memory_format=form)
    return made


def arguments(laid: Laid, sample: ModuleSample, way: Way) -> tuple[Any, Any]:
    """The arguments of the call: on the device, and in float64 on the CPU. Leaves are the same in both."""

    def put(each: torch.Tensor) -> torch.Tensor:
        floats = each.is_floating_point() or each.is_complex()
        put_one = laid.put if floats else laid.put_indices
        made = put_one(each, way.inputs, "an input")
        return made.requires_grad_(each.requires_grad and way.needs != "parameters")

    def widened(each: torch.Tensor) -> torch.Tensor:
        made = wide(each)
        return made.requires_grad_(each.requires_grad and way.needs != "parameters")

    call = (sample.inputs, dict(sample.named))
    return replaced(call, put), replaced(call, widened)


def leaves_of(module: torch.nn.Module, given: Any) -> list[torch.Tensor]:
    """What has a gradient: inputs, then parameters."""
    found = [*tensors_in(given), *module.parameters()]
    return [each for each in found if each.requires_grad]


def compare(
    context: Context, found: list[torch.Tensor], want: list[torch.Tensor], text: str, at: str
) -> None:
    context.same(len(found), len(want), text, Kind.COUNT, at)
    for one, other in zip(found, want, strict=True):
        context.same(one.device.type, context.kind, "an output is on the device", Kind.DEVICE, at)
        close(context, one, other, text, at)


def state_of(
    context: Context,
    there: torch.nn.Module,
    reference: torch.nn.Module,
    before: dict[str, torch.Tensor],
    at: str,
) -> None:
    """Parameters are as they were; buffers are as the CPU's: changed in training, as they were in eval."""
    kept = dict(reference.named_buffers())
    training = there.training
    after = there.state_dict()
    context.same(sorted(after), sorted(before), "the names of the state stay", Kind.STATE, at)
    for key, value in after.items():
        if training and key in kept:
            close(context, value, kept[key], "a buffer is the CPU's after the call", at)
        else:
            context.equal(value, before[key], "what no training changes stays as it was", at)
