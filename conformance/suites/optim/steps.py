"""Checks of optimiser steps for the clause optim.steps: each optimiser in each implementation (single, foreach, fused,
capturable) that torch allows for the device, on parameters in many layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotShown
from conformance.suites.optim.parameters import (
    LISTS,
    MATRICES,
    READ,
    STEPS,
    Parameter,
    give_gradients,
    gradients,
    judge,
    must_be_taken,
    optimiser,
    place_parameters,
    reference,
    step_once,
    takes_closure,
)
from devices.failure import Kind
from opinfo.catalog import optimisers

cases = Cases(Kind.VALUES)

#: Argument sets in addition to those of torch's database. Every argument changes the result of one of them by far more
#: than rounding.
MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "Adadelta": ({"lr": 0.5, "rho": 0.6, "eps": 1e-3, "weight_decay": 0.1, "maximize": True},),
    "Adafactor": ({"lr": 0.05, "d": 1.25, "eps": (1e-3, 1e-2), "weight_decay": 0.1, "maximize": True},),
    "Adagrad": ({"lr": 0.1, "lr_decay": 0.5, "eps": 1e-2, "weight_decay": 0.1, "maximize": True},),
    "Adam": (
        {"lr": 0.05, "betas": (0.6, 0.8), "eps": 1e-3, "weight_decay": 0.1},
        {"lr": 0.05, "betas": (0.3, 0.4), "amsgrad": True, "maximize": True},
    ),
    "AdamW": (
        {"lr": 0.05, "betas": (0.6, 0.8), "eps": 1e-3, "weight_decay": 0.5},
        {"lr": 0.05, "betas": (0.3, 0.4), "amsgrad": True, "maximize": True},
    ),
    "Adamax": ({"lr": 0.05, "betas": (0.6, 0.8), "eps": 1e-2, "weight_decay": 0.1},),
    "ASGD": ({"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 2, "weight_decay": 0.1},),
    "LBFGS": ({"lr": 0.3, "max_iter": 4, "history_size": 2},),
    "Muon": ({"lr": 0.1, "momentum": 0.5, "nesterov": False, "weight_decay": 2.0},),
    "NAdam": (
        {"lr": 0.05, "betas": (0.6, 0.8), "eps": 1e-3, "momentum_decay": 1.0, "maximize": True},
    ),
    "RAdam": ({"lr": 0.05, "betas": (0.6, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True},),
    "RMSprop": (
        {"lr": 0.05, "alpha": 0.6, "eps": 1e-3, "centered": True, "momentum": 0.5, "weight_decay": 0.1},
    ),
    "Rprop": ({"lr": 0.05, "etas": (0.3, 1.7), "step_sizes": (0.02, 0.051), "maximize": True},),
    "SGD": (
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.1, "maximize": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
    ),
}  # fmt: skip


#: The float32 values of arguments whose default depends on the dtype.
FIXED: dict[str, dict[str, Any]] = {"Adafactor": {"eps": (2.0**-23, 1e-3)}}


def ways_of(implementations: Sequence[str]) -> list[str]:
    """Return the names of the implementations that an optimiser has: "single", "foreach", "fused", "capturable" and
    combinations such as "capturable_foreach"."""
    ways = ["single", *(each for each in implementations if each != "capturable")]
    if "capturable" in implementations:
        ways += ["capturable", "capturable_foreach"]
    if {"fused", "capturable"} <= {*implementations}:
        ways.append("capturable_fused")
    return ways


#: The implementations whose learning rate may be a tensor on the device.
TAKE_TENSORS = ("fused", "capturable", "capturable_fused")


def sets_of(name: str, arguments: Sequence[dict[str, Any]], way: str) -> tuple[dict[str, Any], ...]:
    """Return the argument sets of an optimiser for one implementation, such as "fused", without the arguments that
    select the implementation."""
    found = []
    for each in (*arguments, *MORE.get(name, ())):
        plain = FIXED.get(name, {}) | {
            key: value for key, value in each.items() if key != "capturable"
        }
        if (way.startswith("capturable") or "capturable" not in each) and plain not in found:
            found.append(plain)
    if way in TAKE_TENSORS:
        found.append({**found[-1], "lr": {"tensor": 0.01, "there": True}})
    return tuple(found)


#: For each optimiser: its ways of stepping, each with its argument sets. Optimisers for sparse gradients only are left
#: out, because a device need not have sparse tensors.
WAYS = {
    each.name: {
        way: sets_of(each.name, each.arguments, way) for way in ways_of(each.implementations)
    }
    for each in optimisers()
    if not each.sparse
}


#: Optimisers that accept only matrices.
TAKE_MATRICES = frozenset({"Muon"})
#: Optimisers that compute gradients themselves and refuse those that are dense and not contiguous. Such a gradient has
#: the layout of its parameter.
TAKE_ROWS = frozenset({"LBFGS"})
#: Number of steps of an optimiser that computes the loss up to 25 times per step.
FEWER = {"LBFGS": 2}
#: Optimisers that refuse parameters without elements.
TAKE_NO_EMPTY = frozenset({"Adafactor"})


def parameters_of(name: str, which: str) -> tuple[Parameter, ...]:
    """Return the parameters of a list in ``LISTS`` that an optimiser accepts. Few of the list "alike" are matrices, so
    an optimiser of matrices gets others instead."""
    every = MATRICES if name in TAKE_MATRICES and which == "alike" else LISTS[which]
    return tuple(each for each in every if _takes(name, each))


def _takes(name: str, parameter: Parameter) -> bool:
    if name in TAKE_MATRICES and len(parameter.shape) != 2:
        return False
    if name in TAKE_ROWS and parameter.layout.startswith(("transposed", "channels_last")):
        return False
    return not (name in TAKE_NO_EMPTY and 0 in parameter.shape)


def run(
    context: CaseContext,
    name: str,
    way: str,
    arguments: dict[str, Any],
    parameters: tuple[Parameter, ...],
    steps: int = STEPS,
    indices: Sequence[int] = (0,),
) -> bool:
    """Make the steps on the device and judge the results. Returns False if the optimiser refuses the arguments on the
    CPU too."""
    found = place_parameters(context, parameters, indices)
    try:
        made = optimiser(name, found.tensors, arguments, way, context.device)
    except ValueError:
        if _cpu_takes(name, way, arguments):
            raise
        return False
    at = f"{way}, {arguments}, {len(parameters)} parameters"
    for step in range(steps):
        give_gradients(context, found, step)
        step_once(made, found.tensors)
    if not takes_closure(made):
        for tensor, grad in zip(found.tensors, gradients(parameters, steps - 1), strict=True):
            if grad is not None and tensor.grad is not None:
                context.equal(tensor.grad, grad.to(tensor.dtype), READ, at)
    judge(context, made, found, reference(name, arguments, parameters, range(steps)), way, at)
    return True


def _cpu_takes(name: str, way: str, arguments: dict[str, Any]) -> bool:
    one = torch.zeros(2, 2, requires_grad=True)
    try:
        optimiser(name, [one], arguments, way, torch.device("cpu"))
    except ValueError:
        return False
    return True


def takes_lists(way: str) -> bool:
    """Return True if one kernel may process many parameters, which is the case for foreach and fused steps."""
    return "foreach" in way or "fused" in way


@cases(
    "optim.steps",
    over={
        f"{name}_{way}": (name, way, sets)
        for name, ways in WAYS.items()
        for way, sets in ways.items()
    },
)
def steps(context: CaseContext, name: str, way: str, sets: Sequence[dict[str, Any]]) -> None:
    """Make steps with each set of arguments on parameters of several layouts, among them channels_last and views of one
    buffer: parameters and state must equal those of single-tensor steps on the CPU in float64."""
    must_be_taken(context, way)
    alike = parameters_of(name, "alike")
    steps = FEWER.get(name, STEPS)
    taken = [each for each in sets if run(context, name, way, each, alike, steps)]
    if not taken or (way == "single" and len(taken) < len(sets)):
        raise NotShown(
            f"{name} ({way}) refuses {len(sets) - len(taken)} of {len(sets)} sets of arguments, also on the CPU"
        )
    lists = ("large", "many", "one") if takes_lists(way) else ("large",)
    for which in lists:
        # Fused steps have another path for a learning rate that is a tensor, as in the last set.
        for given in taken[-2:] if "fused" in way else taken[-1:]:
            if parameters := parameters_of(name, which):
                run(context, name, way, given, parameters, steps=3)


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_dtypes": (name, way, sets[-1])
        for name, ways in WAYS.items()
        for way, sets in ways.items()
        if takes_lists(way) and parameters_of(name, "dtypes")
    },
)
def dtypes(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Make steps on parameters of several dtypes in one optimiser: parameters and state must equal those of
    single-tensor steps on the CPU in float64."""
    must_be_taken(context, way)
    taken = [p for p in parameters_of(name, "dtypes") if p.dtype in context.descriptor.dtypes]
    # A large learning rate, so that changes are larger than the rounding errors of bfloat16.
    run(context, name, way, {**arguments, "lr": 0.5}, tuple(taken), steps=3)


@cases(
    "optim.steps",
    over={
        f"{name}_fused_rates": (name, ways["fused"][0])
        for name, ways in WAYS.items()
        if "fused" in ways
    },
)
def rates(context: CaseContext, name: str, arguments: dict[str, Any]) -> None:
    """Make fused steps with a learning rate that is a tensor of the CPU, without dimensions and with one dimension:
    parameters and state must equal those of single-tensor steps on the CPU (pytorch/pytorch#145674)."""
    must_be_taken(context, "fused")
    for rate in (0.05, [0.05]):
        given = {**arguments, "lr": {"tensor": rate}}
        run(context, name, "fused", given, parameters_of(name, "one"), steps=2)


REFUSED_OR_EQUAL = "a fused step is neither refused nor equal to the single-tensor step on the CPU"


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_layouts": (name, way, sets[-1])
        for name, ways in WAYS.items()
        for way, sets in ways.items()
        if way in ("foreach", "fused", "capturable_foreach") or name == "Muon"
    },
    requires={"strides", "storage"},
)
def other_layouts(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Make steps on parameters with gaps, and with gradients whose layouts differ from the parameters': parameters and
    state must equal those of single-tensor steps on the CPU. A fused step may raise RuntimeError instead."""
    must_be_taken(context, way)
    if "fused" not in way:
        run(context, name, way, arguments, parameters_of(name, "others"))
        return
    for parameter in parameters_of(name, "others"):
        try:
            run(context, name, way, arguments, (parameter,), steps=3)
        except NotImplementedError:
            raise
        except RuntimeError:
            context.note(
                "fused steps refuse parameters with gaps, or gradients whose layout differs from the parameter's"
            )
            context.check(True, REFUSED_OR_EQUAL)
