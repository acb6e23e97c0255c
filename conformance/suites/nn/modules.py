"""Checks of the clause nn.modules: results and gradients of each module in torch's module database must equal the
CPU's."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.nn.forward_backward import (
    WAYS,
    Way,
    assert_equals_cpu,
    cotangents,
    differentiable,
    replaced,
    tensors_in,
    wide,
)
from devices.failure import Kind
from opinfo.module_catalog import ModuleEntry, ModuleSample, module_entries

cases = Cases(Kind.VALUES)

#: The modules in the database of torch 2.13. They are listed here because loading the database takes seconds and a plan
#: is made without it. A test compares the list with the database.
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

#: Smallest number of runs of a module in each mode. If a module has fewer samples, some are run in several ways.
RUNS = 8

#: Largest number of runs of a module in each mode. LONG lists the modules with more samples; larger plans run them all.
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
def as_on_the_cpu(context: CaseContext, name: str, most: int) -> None:
    """Run a module forward and backward on the samples of torch's module database, in training and eval mode, with
    inputs and cotangents in several layouts: results, gradients and running statistics must equal the CPU's, and inputs
    and cotangents must not change."""
    entry = module_entries().get(name)
    if entry is None:
        raise NotDeclared(f"the module database of torch {torch.__version__} has no {name}")
    for training in (True, False):
        for number, sample, way in runs(entry, most, training=training):
            mode = "training" if training else "eval"
            at = f"sample {number} in {mode}, {way}"
            run_once(context, entry.build, sample, way, training, at)


def runs(
    entry: ModuleEntry, most: int, *, training: bool
) -> Iterator[tuple[int, ModuleSample, Way]]:
    """Yield a tuple (number, sample, conditions of the run) for each run of a module in one mode. All entries of
    ``WAYS`` are used at least once. If the module has more than ``most`` samples, evenly spaced samples are taken,
    and eval mode takes different samples than training mode."""
    with seeded_globally(20):  # torch's database draws from the default generator
        samples = list(enumerate(entry.samples(training=training)))
    step = -(-len(samples) // most)
    taken = samples[(0 if training else step // 2) :: step]
    for number in range(max(len(taken), RUNS)):
        # Shift the ways by one when a sample would get the same way again.
        way = WAYS[(number + number // math.lcm(len(taken), len(WAYS))) % len(WAYS)]
        yield *taken[number % len(taken)], way


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the CPU's default generator for a ``with`` block, and restore its state afterwards."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def seeded(context: CaseContext, at: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, context.seed + at)))


def built(build: Any, sample: ModuleSample, generator: torch.Generator) -> torch.nn.Module:
    """Build a module on the CPU in float32 and add random numbers to its parameters and buffers. Without these
    numbers, many weights would be 1 and many biases and means 0, and a device that ignores them would pass."""
    with warnings.catch_warnings(), seeded_globally(7):
        warnings.simplefilter("ignore")  # the database's arguments cause warnings
        module: torch.nn.Module = build(*copied(sample.args), **copied(sample.kwargs)).float()
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
    """Return a deep copy of a module's constructor arguments. The copy is necessary because modules among the
    arguments become parts of the module that is built."""
    return copy.deepcopy(value)


def detached(value: Any) -> Any:
    return replaced(value, lambda each: each.detach())


def run_once(
    context: CaseContext,
    build: Any,
    sample: ModuleSample,
    way: Way,
    training: bool,
    at: str,
    *,
    gradients: bool = True,
) -> None:
    """Run a module once. If ``gradients`` is false, it runs without gradients on the device, where modules may take a
    fast path; the reference does not take it."""
    generator = seeded(context, at)
    module = built(build, sample, generator).train(training)
    reference = copy.deepcopy(module).double()
    there = moved(context, module, way)
    before = {key: value.clone() for key, value in there.state_dict().items()}

    laid = GuardedTensors(context)
    given, want_given = arguments(laid, sample, way)
    for each in (there, reference):
        each.requires_grad_(way.needs != "inputs")
    with warnings.catch_warnings(), seeded_globally(3):
        warnings.simplefilter("ignore")  # the CPU warns about its choice of kernels
        want = reference(*want_given[0], **want_given[1])
        with torch.set_grad_enabled(gradients):
            got = there(*given[0], **given[1])
    compare(
        context,
        list(results_in(got)),
        list(results_in(want)),
        "an output differs from the CPU's",
        at,
    )
    state_of(context, there, reference, before, at)

    if not gradients:
        laid.check_intact(at)
        return
    starts, want_starts = differentiable(got), differentiable(want)
    context.same(
        len(starts),
        len(want_starts),
        "the number of outputs that require a gradient differs from the CPU's",
        at=at,
    )
    leaves, want_leaves = leaves_of(there, given), leaves_of(reference, want_given)
    if want_starts and want_leaves:
        mine, theirs = cotangents(laid, want_starts, way.cotangent, generator)
        found = torch.autograd.grad(starts, leaves, mine, allow_unused=True)
        expected = torch.autograd.grad(want_starts, want_leaves, theirs, allow_unused=True)
        for one, other in zip(found, expected, strict=True):
            context.same(
                one is None,
                other is None,
                "the gradient is None on the device or on the CPU, but not on both",
                at=at,
            )
            if one is not None and other is not None:
                assert_equals_cpu(context, one, other, "a gradient differs from the CPU's", at)
    laid.check_intact(at)


def moved(context: CaseContext, module: torch.nn.Module, way: Way) -> torch.nn.Module:
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


def arguments(laid: GuardedTensors, sample: ModuleSample, way: Way) -> tuple[Any, Any]:
    """Return the arguments of the call twice: on the device, and in float64 on the CPU. The same tensors require
    gradients in both, and a tensor that is given several times stays one tensor."""

    def put(each: torch.Tensor) -> torch.Tensor:
        if each.is_floating_point() or each.is_complex():
            made = laid.put(each, way.inputs, "an input").view
        else:
            made = laid.put_indices(each, way.inputs, "an input")
        return made.requires_grad_(each.requires_grad and way.needs != "parameters")

    def widened(each: torch.Tensor) -> torch.Tensor:
        made = wide(each)
        return made.requires_grad_(each.requires_grad and way.needs != "parameters")

    def once(
        swap: Callable[[torch.Tensor], torch.Tensor],
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        made: dict[int, torch.Tensor] = {}

        def swapped(each: torch.Tensor) -> torch.Tensor:
            if id(each) not in made:
                made[id(each)] = swap(each)
            return made[id(each)]

        return swapped

    call = (sample.inputs, dict(sample.named))
    return replaced(call, once(put)), replaced(call, once(widened))


def results_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, except the sizes of the batches of a packed sequence, which are on the CPU whatever
    the device."""
    if isinstance(value, PackedSequence):
        yield from tensors_in((value.data, value.sorted_indices, value.unsorted_indices))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from results_in(each)
    else:
        yield from tensors_in(value)


def leaves_of(module: torch.nn.Module, given: Any) -> list[torch.Tensor]:
    """Return the tensors of a call of the module that require a gradient: first those among its arguments ``given``,
    then its parameters."""
    found = [*tensors_in(given), *module.parameters()]
    return [each for each in found if each.requires_grad]


def compare(
    context: CaseContext, found: list[torch.Tensor], want: list[torch.Tensor], text: str, at: str
) -> None:
    context.same(len(found), len(want), text, Kind.COUNT, at)
    for one, other in zip(found, want, strict=True):
        context.same(
            one.device.type, context.kind, "an output is not on the device", Kind.DEVICE, at
        )
        assert_equals_cpu(context, one, other, text, at)


def state_of(
    context: CaseContext,
    there: torch.nn.Module,
    reference: torch.nn.Module,
    before: dict[str, torch.Tensor],
    at: str,
) -> None:
    """Check the state of the module after the call. Parameters must be unchanged; buffers must equal the CPU's in
    training mode and be unchanged in eval mode."""
    kept = dict(reference.named_buffers())
    training = there.training
    after = there.state_dict()
    context.same(
        sorted(after), sorted(before), "the names in the state_dict changed", Kind.STATE, at
    )
    for key, value in after.items():
        if training and key in kept:
            assert_equals_cpu(
                context, value, kept[key], "a buffer differs from the CPU's after the call", at
            )
        else:
            context.equal(
                value,
                before[key],
                "a parameter or buffer that the call must not change has changed",
                at,
            )


# -- modules in combination, and modules without samples in the database


@cases("nn.modules")
def a_stack_of_blocks(context: CaseContext) -> None:
    """Stack 12 blocks of the form x + norm(x): the result and the gradient must equal the CPU's, and the gradient must
    be finite."""
    for build in (lambda: torch.nn.GroupNorm(4, 8), lambda: torch.nn.BatchNorm1d(8)):
        blocks = [build() for _ in range(12)]
        there = [copy.deepcopy(each).to(context.device) for each in blocks]
        wide = [copy.deepcopy(each).double() for each in blocks]
        values = torch.randn(4, 8, 6, generator=seeded(context, ""))
        x, y = context.to_device(values).requires_grad_(), values.double().requires_grad_()
        got, want = x, y
        for mine, theirs in zip(there, wide, strict=True):
            got, want = got + mine(got), want + theirs(want)
        assert_equals_cpu(context, got, want, "the result differs from the CPU's", "a stack")
        one, other = torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), y)[0]
        finite = bool(context.from_device(one).isfinite().all())
        context.check(finite, "the gradient of a stack of blocks is not finite")
        scale = float(other.abs().max())
        assert_equals_cpu(
            context,
            one / max(scale, 1),
            other / max(scale, 1),
            "a gradient differs from the CPU's",
            "a stack",
        )


@cases("nn.modules")
def columns_without_variance(context: CaseContext) -> None:
    """Run BatchNorm1d alternately on random batches of several sizes and on constant columns: for constant columns, the
    result must be the bias, and the gradient must be finite."""
    layer = torch.nn.BatchNorm1d(16, track_running_stats=False)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(16.0))
    layer.to(context.device)
    x = torch.arange(16.0).expand(8, 16) * 3
    want = torch.arange(16.0).double().expand(8, 16)
    for before in (8, 64, 8, 3):
        layer(context.to_device(torch.randn(before, 16, generator=seeded(context, str(before)))))
        there = context.to_device(x.contiguous()).requires_grad_()
        got = layer(there)
        assert_equals_cpu(
            context,
            got,
            want,
            "the result for constant columns differs from the bias",
            f"after a call on a batch of {before} rows",
        )
        (grad,) = torch.autograd.grad(got.sum(), there)
        finite = bool(context.from_device(grad).isfinite().all())
        context.check(finite, "the gradient for constant columns is not finite")


DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")


@cases("nn.modules", over={name: (name,) for name in DROPOUTS})
def dropout(context: CaseContext, name: str) -> None:
    """Run dropout in eval mode: the result must equal the input. In training mode, dropout must drop about a quarter of
    the elements, or of the channels, scale the rest, and give the gradient the same mask."""
    rank = {"Dropout1d": 3, "Dropout2d": 4, "Dropout3d": 5}.get(name, 4)
    shape = (20, 30, *[2] * (rank - 2))
    x = context.to_device(torch.rand(shape, generator=seeded(context, "")) + 1).requires_grad_()
    layer = getattr(torch.nn, name)(0.25)
    context.equal(layer.eval()(x), x, "dropout in eval mode changes its input")
    for probability, kept in ((0.0, 1), (1.0, 0)):
        out = getattr(torch.nn, name)(probability).train()(x)
        context.equal(out, x * kept, "dropout with probability 0 or 1 gives wrong values")
    out = layer.train()(x)
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    value, given, slope = (context.from_device(each.detach()) for each in (out, x, grad))
    dropped = slope == 0
    share = float(dropped.float().mean())
    text = "the share of dropped elements is not about a quarter"
    context.check(0.1 < share < 0.45, text, expected="0.1 to 0.45", found=share)
    if rank > 2 and name not in ("Dropout", "AlphaDropout"):
        whole = dropped.flatten(2)
        same = bool((whole == whole[..., :1]).all())
        context.check(same, "only a part of a channel is dropped")
    lost = value[dropped]
    context.check(
        bool((lost == lost[:1]).all()), "dropped elements have different values", found=lost[:4]
    )
    if not name.endswith("AlphaDropout"):
        text = "kept elements are not divided by the probability of keeping them"
        assert_equals_cpu(
            context, out, (given.double() / 0.75).masked_fill(dropped, 0), text, "training"
        )
        assert_equals_cpu(
            context, grad, torch.full(shape, 4 / 3).double().masked_fill(dropped, 0), text, ""
        )


@cases("nn.modules", kind=Kind.STATE)
def states(context: CaseContext) -> None:
    """Move a module with a shared submodule to the device, in contiguous and channels_last format: parameters and
    buffers must keep their values, strides and sharing. A loaded state_dict must give the same values, and a forward
    pass in training mode must change only the running statistics."""
    first = torch.nn.Conv2d(4, 4, 3, padding=1)
    module = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), first, torch.nn.PReLU(4))
    move: Any = copy.deepcopy(module).to
    plain = {key: value.clone() for key, value in module.state_dict().items()}
    for form in (torch.contiguous_format, torch.channels_last):
        shaped = move(memory_format=form)
        strides = {key: value.stride() for key, value in shaped.state_dict().items()}
        there = copy.deepcopy(shaped).to(context.device)
        context.check(there[0] is there[2], "a submodule that is used twice became two modules")
        context.check(
            len(list(there.parameters())) == len(list(module.parameters())),
            "shared parameters are no longer shared",
            kind=Kind.NOT_ALIASED,
        )
        for key, value in there.state_dict().items():
            context.same(
                value.device.type,
                context.kind,
                "a parameter or buffer is not on the device",
                Kind.DEVICE,
            )
            context.equal(
                value, plain[key], "a parameter or buffer changed its values when moved", key
            )
            if context.opened.lays_out:
                text = "a parameter or buffer changed its strides when moved"
                context.same(value.stride(), strides[key], text, Kind.STRIDES, key)
        fresh = copy.deepcopy(module)
        with torch.no_grad():
            for each in fresh.parameters():
                each.zero_()
        fresh.load_state_dict({k: v.cpu() for k, v in there.state_dict().items()})
        fresh.to(context.device).load_state_dict(there.state_dict())
        for key, value in fresh.state_dict().items():
            context.equal(
                value, plain[key], "a loaded parameter or buffer has different values", key
            )
        x = torch.randn(2, 4, 5, 5, generator=seeded(context, ""))
        want = copy.deepcopy(module).double()(x.double())
        assert_equals_cpu(
            context, there(context.to_device(x)), want, "an output differs from the CPU's", ""
        )
        changed = [k for k, v in there.state_dict().items() if not v.cpu().equal(plain[k])]
        text = "a forward pass in training mode changed the wrong entries of the state_dict"
        buffers = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
        context.same(changed, buffers, text)
        back = there.to("cpu")
        context.check(back[0] is back[2], "a submodule that is used twice became two modules")


OTHERS: dict[
    str, tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...], tuple[tuple[int, ...], ...]]
] = {
    "Upsample.nearest": ("Upsample", (), (("scale_factor", 2),), ((2, 3, 4, 5),)),
    "Upsample.bilinear": (
        *("Upsample", (), (("scale_factor", 1.5), ("mode", "bilinear"), ("align_corners", True))),
        ((2, 3, 4, 5),),
    ),
    "Upsample.bicubic": ("Upsample", (), (("size", 7), ("mode", "bicubic")), ((2, 3, 4, 5),)),
    "PixelShuffle": ("PixelShuffle", (2,), (), ((2, 8, 3, 4),)),
    "PixelUnshuffle": ("PixelUnshuffle", (2,), (), ((2, 2, 4, 6),)),
    "ChannelShuffle": ("ChannelShuffle", (2,), (), ((2, 6, 3, 4),)),
    "Unfold": ("Unfold", (3,), (("padding", 1), ("stride", 2)), ((2, 3, 6, 7),)),
    "Fold": ("Fold", ((4, 5), 2), (), ((2, 8, 12),)),
    "Flatten": ("Flatten", (), (), ((2, 3, 4),)),
    "CosineSimilarity": ("CosineSimilarity", (), (), ((4, 6), (4, 6))),
    "PairwiseDistance": ("PairwiseDistance", (), (), ((4, 6), (4, 6))),
    "TripletMarginLoss": ("TripletMarginLoss", (), (), ((4, 6), (4, 6), (4, 6))),
    "BatchNorm2d.cumulative": ("BatchNorm2d", (3,), (("momentum", None),), ((4, 3, 5, 2),)),
    "BatchNorm2d.momentum": (
        "BatchNorm2d",
        (3,),
        (("momentum", 0.3), ("eps", 0.1)),
        ((4, 3, 5, 2),),
    ),
    "Conv2d.uneven": (
        *(
            "Conv2d",
            (4, 6, (3, 2)),
            (("stride", (2, 1)), ("padding", (1, 2)), ("dilation", (1, 2))),
        ),
        ((2, 4, 9, 8),),
    ),
    "Conv2d.depthwise": ("Conv2d", (4, 8, 3), (("groups", 4),), ((2, 4, 6, 7),)),
    "Conv2d.reflect": (
        "Conv2d",
        (4, 3, 3),
        (("padding", 2), ("padding_mode", "reflect")),
        ((2, 4, 6, 7),),
    ),
}


@cases("nn.modules", over=OTHERS)
def others(
    context: CaseContext,
    kind: str,
    args: tuple[Any, ...],
    options: tuple[tuple[str, Any], ...],
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    """Run modules and options that torch's module database has no samples for, in training and eval mode, in several
    layouts: results, gradients and buffers must equal the CPU's."""
    drawn = seeded(context, "")
    inputs = tuple(torch.randn(shape, generator=drawn).requires_grad_() for shape in shapes)
    sample = ModuleSample(args, dict(options), inputs, {})
    for training in (True, False):
        for way in WAYS:
            mode = "training" if training else "eval"
            run_once(context, getattr(torch.nn, kind), sample, way, training, f"{mode}, {way}")


@cases(
    "nn.modules", over={f"CTCLoss.{name}": (name,) for name in ("int32", "int64", "padded_int32")}
)
def targets(context: CaseContext, kind: str) -> None:
    """Run CTCLoss with targets of int32 and int64, concatenated or padded, with lengths as tensors on the device, as
    tensors on the CPU, and as tuples: the losses and the gradient must equal the CPU's."""
    drawn = seeded(context, "")
    lengths, dtype = (3, 5, 2), torch.int64 if kind == "int64" else torch.int32
    labels = torch.randint(1, 7, (3, 5) if kind.startswith("padded") else (10,), generator=drawn)
    labels = labels.to(dtype)
    scores = torch.randn(12, 3, 7, generator=drawn).log_softmax(-1)
    for times in ((12, 12, 12), (12, 11, 9)):
        for form in ("tensors on the device", "tensors on the CPU", "tuples"):
            x, y = context.to_device(scores).requires_grad_(), scores.double().requires_grad_()
            given: list[Any] = [times, lengths]
            if form != "tuples":
                given = [torch.tensor(each, dtype=dtype) for each in given]
            there = [context.to_device(t) for t in given] if form.endswith("device") else given
            layer = torch.nn.CTCLoss(reduction="none")
            got, want = layer(x, context.to_device(labels), *there), layer(y, labels, *given)
            at = f"lengths are {form}, {times} steps"
            assert_equals_cpu(context, got, want, "the loss differs from the CPU's", at)
            weights = torch.tensor([1.0, 0.5, -2.0])
            (one,) = torch.autograd.grad(got, x, context.to_device(weights))
            (other,) = torch.autograd.grad(want, y, weights.double())
            assert_equals_cpu(context, one, other, "a gradient differs from the CPU's", at)


@cases("nn.modules", over={"Embedding.indices": ("Embedding",), "EmbeddingBag": ("EmbeddingBag",)})
def embeddings(context: CaseContext, kind: str) -> None:
    """Run Embedding and EmbeddingBag with repeated indices, a padding index, offsets and per-sample weights: results
    and gradients must equal the CPU's."""
    drawn = seeded(context, "")
    indices = torch.randint(0, 9, (14,), generator=drawn)
    indices[3] = indices[7] = 2
    indices[5] = indices[10] = 0
    ways: list[tuple[dict[str, Any], tuple[torch.Tensor, ...]]] = [
        ({"padding_idx": 2}, (indices.view(2, 7),)),
        ({"padding_idx": 2, "scale_grad_by_freq": True}, (indices,)),
        ({"padding_idx": 0}, (indices.view(7, 2),)),
        ({}, (indices.flip(0),)),
    ]
    if kind == "EmbeddingBag":
        offsets = torch.tensor([0, 3, 3, 9])  # the second bag is empty
        ended = torch.tensor([0, 3, 3, 14])  # the last offset is the end
        ways = [
            ({"mode": mode, **more}, (indices, ended if "include_last_offset" in more else offsets))
            for mode in ("sum", "mean", "max")
            for more in ({}, {"padding_idx": 2}, {"padding_idx": 0}, {"include_last_offset": True})
        ]
        ways.append(({"mode": "sum"}, (indices, offsets, torch.rand(14, generator=drawn))))
    for options, inputs in ways:
        sample = ModuleSample((10, 5), options, inputs, {})
        for way in WAYS:
            at = f"{options}, {way}"
            run_once(context, getattr(torch.nn, kind), sample, way, True, at)
