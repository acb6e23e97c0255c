"""Checks of the clause nn.rnn: results and gradients of recurrent layers must equal the CPU's, and weights that share
one storage must keep sharing it."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE
from conformance.suites.nn.forward_backward import assert_equals_cpu, cotangents, tensors_in
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: Keyword arguments of a class, as literals that can be hashed.
Options: TypeAlias = tuple[tuple[str, Any], ...]

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn_tanh": ("RNN", {}),
    "rnn_relu": ("RNN", {"nonlinearity": "relu"}),
    "lstm": ("LSTM", {}),
    "gru": ("GRU", {}),
}

#: Sizes of the layers and inputs: no powers of two, and all different.
INPUT, HIDDEN, TIMES, BATCH = 5, 7, 6, 3

SHAPES: dict[str, dict[str, Any]] = {
    "one_layer": {},
    "two_layers": {"num_layers": 2},
    "both_directions": {"bidirectional": True},
    "three_layers_both_directions": {"num_layers": 3, "bidirectional": True},
    "batch_first": {"num_layers": 2, "batch_first": True},
    "no_bias": {"num_layers": 2, "bias": False, "bidirectional": True},
}
PROJECTED: dict[str, dict[str, Any]] = {
    "projected": {"proj_size": 4},
    "projected_layers": {"proj_size": 4, "num_layers": 2, "bidirectional": True},
    "projected_batch_first": {"proj_size": 3, "num_layers": 2, "batch_first": True},
}


def _layer_cases(which: str) -> dict[str, tuple[Any, ...]]:
    layers: dict[str, tuple[Any, ...]] = {}
    for name, (kind, options) in LAYERS.items():
        shapes = SHAPES | PROJECTED if kind == "LSTM" else SHAPES
        if options:  # another nonlinearity of the same cell
            shapes = {each: SHAPES[each] for each in ("two_layers", "both_directions")}
        for shape, more in shapes.items():
            layers[f"{name}.{shape}.{which}"] = (kind, tuple({**options, **more}.items()))
    return layers


#: The outputs that have a cotangent: all, the sequence, the states, or the last state.
STARTS = ("all", "sequence", "states", "last state")
#: The tensors that require a gradient: all, only inputs, only parameters, or every other parameter.
NEEDS = ("all", "inputs", "parameters", "some parameters")
#: Layouts of the sequence and of the states, and of the cotangents.
LAYOUTS = (
    (DENSE, DENSE),
    ("transposed+step_inner+offset", "contiguous+expand_first"),
    ("free:order=1.0.2", "transposed"),
    ("contiguous+step_outer", "scalar"),
)


@cases("nn.rnn", over=_layer_cases("sequences"))
def sequences(context: CaseContext, kind: str, options: Options) -> None:
    """Run a recurrent layer on a batch of sequences and on a single sequence, with nonzero initial states: results and
    gradients must equal the CPU's."""
    for number in range(2 * len(LAYOUTS)):
        inputs, cotangent = LAYOUTS[number % len(LAYOUTS)]
        # In the second round, each layout is combined with another entry of STARTS and NEEDS.
        start = STARTS[(number + number // len(LAYOUTS)) % len(STARTS)]
        needs = NEEDS[(number + 2 * (number // len(LAYOUTS))) % len(NEEDS)]
        form = "alone" if number == len(LAYOUTS) else "padded"
        run(context, kind, dict(options), form, inputs, cotangent, start, needs)


@cases("nn.rnn", over=_layer_cases("packed"))
def packed(context: CaseContext, kind: str, options: Options) -> None:
    """Run a recurrent layer on packed sequences of several lengths, sorted and unsorted: results and gradients must
    equal the CPU's."""
    for number, form in enumerate(("sorted", "unsorted", "unsorted", "of one length", "unsorted")):
        start, needs = STARTS[number % len(STARTS)], NEEDS[(number * 3) % len(NEEDS)]
        inputs, cotangent = LAYOUTS[number % 2]
        run(context, kind, dict(options), form, inputs, cotangent, start, needs)


@cases(
    "nn.rnn",
    over={name: (kind, tuple(options.items())) for name, (kind, options) in LAYERS.items()},
)
def without_states(context: CaseContext, kind: str, options: Options) -> None:
    """Run a recurrent layer without initial states, in training and eval mode, on sequences of three lengths: results
    must equal the CPU's. So must results and gradients of a layer in training that drops everything between its layers:
    a backward that does not know what was dropped gives other gradients."""
    layer, reference = make_layer(context, kind, {**dict(options), "num_layers": 2})
    for training in (True, False):
        layer.train(training)
        reference.train(training)
        for times in (TIMES, 1, 2 * TIMES):
            x = torch.randn(times, BATCH, INPUT, generator=generator(context))
            got, want = layer(context.to_device(x)), reference(x.double())
            for one, other in zip(tensors_in(got), tensors_in(want), strict=True):
                assert_equals_cpu(
                    context, one, other, "an output differs from the CPU's", f"{times} steps"
                )
    dropped = {**dict(options), "num_layers": 2, "dropout": 1.0}
    run(context, kind, dropped, "padded", DENSE, DENSE, "all", "all")


def generator(context: CaseContext) -> torch.Generator:
    return torch.Generator().manual_seed(sum(map(ord, context.seed)))


def make_layer(
    context: CaseContext, kind: str, options: dict[str, Any]
) -> tuple[torch.nn.RNNBase, torch.nn.RNNBase]:
    """Return a recurrent layer with random weights on the device, and a float64 copy of the layer on the CPU."""
    layer: torch.nn.RNNBase = getattr(torch.nn, kind)(INPUT, HIDDEN, **options)
    drawn = generator(context)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.rand(each.shape, generator=drawn) - 0.5)
    reference = copy.deepcopy(layer).double()
    return layer.to(context.device), reference


def run(
    context: CaseContext,
    kind: str,
    options: dict[str, Any],
    form: str,
    inputs: str,
    cotangent: str,
    start: str,
    needs: str,
) -> None:
    at = (
        f"{form} sequences, inputs {inputs}, {cotangent} cotangents for the outputs ({start}),"
        f" gradients of {needs}"
    )
    layer, reference = make_layer(context, kind, options)
    drawn = generator(context)
    laid = GuardedTensors(context)
    alone = form == "alone"
    x = sequence(options, alone, drawn)
    states = initial(kind, options, alone, drawn)
    wanted = needs in ("all", "inputs")
    # States are contiguous, because libraries may refuse other layouts with an error (torch.nn.LSTM on CUDA does).
    mine = [laid.put(x, inputs, "the sequence").view]
    mine += [laid.put(each, "contiguous+offset", "a state").view for each in states]
    mine = [each.requires_grad_(wanted) for each in mine]
    theirs = [each.double().requires_grad_(wanted) for each in (x, *states)]
    for module in (layer, reference):
        for place, each in enumerate(module.parameters()):
            each.requires_grad_(
                needs != "inputs" and (needs != "some parameters" or place % 2 == 0)
            )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU warns about its choice of kernels
        got = called(layer, mine, options, form)
        want = called(reference, theirs, options, form)
    results, expected = list(tensors_in(got)), list(tensors_in(want))
    for one, other in zip(results, expected, strict=True):
        assert_equals_cpu(context, one, other, "an output differs from the CPU's", at)

    chosen = [place for place in chosen_of(start, len(expected)) if expected[place].requires_grad]
    mine_given, theirs_given = cotangents(
        laid, [expected[place] for place in chosen], cotangent, drawn
    )
    leaves = [each for each in (*mine, *layer.parameters()) if each.requires_grad]
    want_leaves = [each for each in (*theirs, *reference.parameters()) if each.requires_grad]
    found = torch.autograd.grad(
        [results[place] for place in chosen], leaves, mine_given, allow_unused=True
    )
    right = torch.autograd.grad(
        [expected[place] for place in chosen], want_leaves, theirs_given, allow_unused=True
    )
    for one_grad, other_grad in zip(found, right, strict=True):
        if one_grad is None or other_grad is None:
            # A kernel for all layers may give zeros where the CPU gives None, and the reverse.
            given = other_grad if one_grad is None else one_grad
            zeros = given is None or not context.from_device(given).any()
            context.check(
                zeros, "a gradient is None on one device and not zero on the other", at=at
            )
            continue
        assert_equals_cpu(context, one_grad, other_grad, "a gradient differs from the CPU's", at)
    laid.check_intact(at)


def chosen_of(start: str, count: int) -> Sequence[int]:
    """Return the indices of those of ``count`` outputs that have a cotangent if backward starts from ``start``.
    Output 0 is the sequence; the states follow."""
    return {
        "all": range(count),
        "sequence": range(1),
        "states": range(1, count),
        "last state": range(count - 1, count),
    }[start]


def sequence(options: dict[str, Any], alone: bool, drawn: torch.Generator) -> torch.Tensor:
    x = torch.randn(TIMES, BATCH, INPUT, generator=drawn)
    x = x.transpose(0, 1) if options.get("batch_first") else x
    if alone:
        return x.select(0 if options.get("batch_first") else 1, 0)
    return x


def initial(
    kind: str, options: dict[str, Any], alone: bool, drawn: torch.Generator
) -> list[torch.Tensor]:
    """Return the initial states of a layer: random numbers that differ for each layer and direction."""
    layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    widths = [options.get("proj_size", HIDDEN), HIDDEN][: 2 if kind == "LSTM" else 1]
    made_states = [torch.randn(layers, BATCH, width, generator=drawn) for width in widths]
    return [each.select(1, 0) if alone else each for each in made_states]


def called(
    layer: torch.nn.Module, given: Sequence[torch.Tensor], options: dict[str, Any], form: str
) -> Any:
    """Return the result of the layer. The sequence is packed if ``form`` is "sorted", "unsorted" or "of one length"."""
    x, *states = given
    state = tuple(states) if len(states) > 1 else states[0]
    lengths = {"sorted": [6, 4, 1], "unsorted": [2, 6, 3], "of one length": [6, 6, 6]}.get(form)
    if lengths is None:
        return layer(x, state)
    packed_up = pack_padded_sequence(
        x, torch.tensor(lengths), bool(options.get("batch_first")), enforce_sorted=form == "sorted"
    )
    out, rest = layer(packed_up, state)
    assert isinstance(out, PackedSequence)
    return out.data, rest


@cases(
    "nn.rnn",
    over={
        f"{name}_batch_of_{batch}": (kind, tuple(options.items()), batch)
        for name, (kind, options) in LAYERS.items()
        for batch in (131, 1031)
    },
)
def large_batches(context: CaseContext, kind: str, options: Options, batch: int) -> None:
    """Run a recurrent layer on a large batch of short sequences: results and gradients must equal the CPU's."""
    layer, reference = make_layer(context, kind, dict(options))
    x = torch.randn(3, batch, INPUT, generator=generator(context))
    there, wide = context.to_device(x).requires_grad_(), x.double().requires_grad_()
    got, want = list(tensors_in(layer(there))), list(tensors_in(reference(wide)))
    for one, other in zip(got, want, strict=True):
        assert_equals_cpu(context, one, other, "an output differs from the CPU's", "outputs")
    weights = torch.randn(want[0].shape, generator=generator(context))
    leaves, want_leaves = [there, *layer.parameters()], [wide, *reference.parameters()]
    found = torch.autograd.grad(got[0], leaves, context.to_device(weights))
    right = torch.autograd.grad(want[0], want_leaves, weights.double())
    for one, other in zip(found, right, strict=True):
        assert_equals_cpu(context, one, other, "a gradient differs from the CPU's", "gradients")


# -- weights that share storage


def in_one_buffer(layer: torch.nn.RNNBase) -> torch.nn.RNNBase:
    """Make the weights of a layer views of one buffer, like flattened weights, and return the layer."""
    parameters = list(layer.parameters())
    flat = torch.cat([each.detach().flatten() for each in parameters])
    parts = flat.split([each.numel() for each in parameters])
    for each, part in zip(parameters, parts, strict=True):
        each.data = part.view(each.shape)
    return layer


def storages(layer: torch.nn.Module) -> int:
    """Return the number of storages that contain the weights of the layer."""
    return len({each.untyped_storage().data_ptr() for each in layer.parameters()})


def trained(layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Run one training step of a layer: forward, backward, and an update of each parameter."""
    layer.train()
    out, _ = layer(x)
    out.pow(2).sum().backward()
    with torch.no_grad():
        for each in layer.parameters():
            assert each.grad is not None
            each.sub_(each.grad, alpha=0.01)


@cases(
    "nn.rnn",
    over={
        f"{name}_weights_share": (kind, tuple(options.items()))
        for name, (kind, options) in LAYERS.items()
    },
    requires={"storage", "pointers"},
    kind=Kind.NOT_ALIASED,
)
def weights_share(context: CaseContext, kind: str, options: Options) -> None:
    """Put the weights of a layer into one storage: they must still share the storage after flatten_parameters, a call
    and a training step, and in a copy of the state_dict. After the step, the weights must equal the CPU's."""
    text = "weights that shared one storage no longer share it"
    plain, reference = make_layer(context, kind, {**dict(options), "num_layers": 2})
    layer = in_one_buffer(plain)
    context.must(storages(layer) == 1, "views of one buffer do not share its storage")
    x = torch.randn(TIMES, BATCH, INPUT, generator=generator(context))
    there, wide = context.to_device(x), x.double()
    layer.flatten_parameters()
    context.same(storages(layer), 1, text, at="after flatten_parameters")
    with torch.no_grad():
        layer(there)
    context.same(storages(layer), 1, text, at="after a call")
    trained(layer, there)
    context.same(storages(layer), 1, text, at="after a step")
    trained(reference, wide)
    for one, other in zip(layer.parameters(), reference.parameters(), strict=True):
        assert_equals_cpu(
            context,
            one,
            other,
            "a weight after a training step differs from the CPU's",
            "in one buffer",
        )
    state = copy.deepcopy(layer.state_dict())
    context.same(
        len({each.untyped_storage().data_ptr() for each in state.values()}),
        1,
        text,
        at="copied state",
    )


@cases(
    "nn.rnn",
    over={
        f"{name}_saved": (kind, tuple(options.items())) for name, (kind, options) in LAYERS.items()
    },
    requires={"storage", "pointers", "serialization"},
    kind=Kind.NOT_ALIASED,
)
def saved(context: CaseContext, kind: str, options: Options) -> None:
    """Save and load a layer whose weights share one storage, and copy the layer. The weights of the loaded layer must
    share one storage, the loaded and the copied layer must give the same results as the original, and the copy must
    have its own weights."""
    plain, _ = make_layer(context, kind, {**dict(options), "num_layers": 2, "bidirectional": True})
    layer = in_one_buffer(plain)
    x = context.to_device(torch.randn(TIMES, BATCH, INPUT, generator=generator(context)))
    with torch.no_grad():
        want = layer(x)[0]
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        context.same(
            storages(loaded), 1, "weights that shared one storage no longer share it after loading"
        )
        context.equal(loaded(x)[0], want, "a loaded layer gives a different result")
        twin = copy.deepcopy(layer)
        context.equal(twin(x)[0], want, "a copied layer gives a different result")
        for each in twin.parameters():
            each.zero_()
        context.equal(
            layer(x)[0], want, "a change of a copied layer's weights changed the original's result"
        )
