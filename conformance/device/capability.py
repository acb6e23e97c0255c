"""device.capability: what the descriptor declares works; what works undeclared is reported."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.device.judging import is_accelerator
from devices.vocabulary import DTYPES

cases = Cases()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def _values(dtype: torch.dtype) -> torch.Tensor:
    """Ones, and noughts where the dtype has one, that every dtype holds exactly."""
    ones = torch.tensor([1.0, 1.0, 1.0, 1.0])
    if dtype == torch.float8_e8m0fnu:  # powers of two alone
        return ones
    return ones * torch.tensor([0.0, 1.0, 0.0, 1.0])


def _each_declared(context: Context, text: str, wrong: Any) -> None:
    """A check of every declared dtype by ``wrong``: what is wrong with it, or empty."""
    found = {}
    for name in sorted(context.descriptor.dtypes):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # that a dtype is experimental, or its imaginary part goes
                problem = wrong(getattr(torch, name))
                context.settle()
        except Exception as error:  # any refusal of what is declared
            problem = _first_line(error)
            with suppress(Exception):
                context.settle()
        context.checks += 1
        if problem:
            found[name] = problem
    context.check(not found, text, got=found)


@cases("device.capability")
def allocates(context: Context) -> None:
    """Each declared dtype allocates."""

    def wrong(dtype: torch.dtype) -> str:
        made = torch.empty(2, 3, dtype=dtype, device=context.device)
        right = (made.dtype, tuple(made.shape), made.device.type)
        return "" if right == (dtype, (2, 3), context.kind) else f"torch.empty gave {right}"

    _each_declared(context, "each declared dtype allocates", wrong)


@cases("device.capability")
def moves(context: Context) -> None:
    """Each declared dtype goes to the device and back, bit for bit."""

    def wrong(dtype: torch.dtype) -> str:
        host = _values(dtype).to(dtype)
        back = context.from_device(context.to_device(host))
        same = back.dtype == dtype and torch.equal(back.view(torch.uint8), host.view(torch.uint8))
        return "" if same else "other bytes came back"

    _each_declared(context, "each declared dtype goes to the device and back", wrong)


@cases("device.capability")
def converts(context: Context) -> None:
    """Each declared dtype converts from float32 and to it, on the device."""

    def wrong(dtype: torch.dtype) -> str:
        want = _values(dtype)
        there = context.to_device(want).to(dtype)
        back = context.from_device(there.to(torch.float32))
        if there.dtype != dtype:
            return f"to({dtype}) gave {there.dtype}"
        return "" if torch.equal(back, want) else f"{want.tolist()} became {back.tolist()}"

    _each_declared(context, "each declared dtype converts from float32 and back", wrong)


@cases("device.capability")
def says_so(context: Context) -> None:
    """What torch.accelerator says of the device's dtypes has those that are declared."""
    declared = {getattr(torch, name) for name in context.descriptor.dtypes}
    if not is_accelerator(context):
        context.check(declared, "dtypes are declared")
        return
    for index in context.indices:
        said = torch.accelerator.get_device_capability(context.at(index))["supported_dtypes"]
        context.same(
            sorted(map(str, declared - set(said))),
            [],
            "every declared dtype is in supported_dtypes",
        )


@cases("device.capability")
def undeclared(context: Context) -> None:
    """An undeclared dtype raises, or converts rightly; what works is reported."""
    works, wrong = [], {}
    for name in sorted(DTYPES - context.descriptor.dtypes):
        dtype = getattr(torch, name, None)
        if dtype is None:  # of a newer torch
            continue
        context.checks += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = _values(dtype)
                back = context.from_device(context.to_device(want).to(dtype).to(torch.float32))
                context.settle()
        except Exception:  # it raises, as a dtype that is not declared may, with whatever type
            with suppress(Exception):  # what else was queued, and fails later
                context.settle()
            continue
        if torch.equal(back, want):
            works.append(name)
        else:
            wrong[name] = f"{want.tolist()} became {back.tolist()}"
    context.check(not wrong, "an undeclared dtype raises, or converts rightly", got=wrong)
    if works:
        context.note(f"works undeclared: {', '.join(works)}")
