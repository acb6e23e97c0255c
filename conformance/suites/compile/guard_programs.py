"""Compiled programs that depend on more than tensors: on the keys of a dict, the type of a sequence, a function, an
attribute of a module, a mode of torch. What they depend on changes between calls, so that they must be compiled again."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from conformance.checks.behaviour.compiler import compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import (
    ATOL,
    RTOL,
    Comparison,
    Inputs,
    Make,
    backend_of,
    compare,
    run,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _with(*arguments: Any) -> Make:
    """Returns a function that creates the inputs of a call: a tensor, and the given arguments."""
    return lambda new: (new(4, 5), *arguments)


@cases("compile.programs", more=True)
def other_keys(context: CaseContext) -> None:
    """The program returns the keys of a dict, and how many keys are left after one was removed; it reads no values. Called
    with other keys, fewer or more keys, or another order, it must return the keys of this call."""

    def program(x: torch.Tensor, given: dict[str, int], other: dict[str, int]) -> Any:
        other.pop("a", None)
        return x * 2, [name.upper() for name in given], len(other)

    def keys(*names: str) -> Make:
        return lambda new: (new(4, 5), dict.fromkeys(names, 1), dict.fromkeys(names, 1))

    calls = ("a", "b"), ("a", "c"), ("c", "a"), ("a",), ("a", "b", "c"), ("a", "b")
    compare(context, program, *(keys(*each) for each in calls))


@cases("compile.programs", more=True)
def tensors_of_a_dict(context: CaseContext) -> None:
    """The program returns a dict with the keys of its argument, whose values are tensors. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call, also with other keys, or with the same keys in another order."""

    def program(given: dict[str, torch.Tensor]) -> Any:
        return {name: value * 2 for name, value in given.items()}, sum(given.values())

    def keys(*names: str) -> Make:
        return lambda new: ({name: new(4, 5) for name in names},)

    calls = ("a", "b"), ("a", "c"), ("c", "a"), ("a",), ("a", "b", "c")
    compare(context, program, *(keys(*each) for each in calls))


@cases("compile.programs", more=True)
def present_and_absent(context: CaseContext) -> None:
    """The program asks whether a dict has a key, whether a set and a frozenset have an element, and whether an object has
    an attribute. The answers differ between calls, and each compiled call must leave the same outputs as the eager call."""

    class Options:
        pass

    def program(x: torch.Tensor, given: Any, names: Any, kinds: Any, options: Any) -> Any:
        y = x * 2 if "scale" in given else x - 1
        y = y.sin() if "sine" in names else y.cos()
        y = y.exp() if list in kinds else y.abs()
        return y + 1 if hasattr(options, "shift") else y * 3

    def call(key: str, name: str, kind: type, attribute: str) -> Make:
        def make(new: Inputs) -> tuple[Any, ...]:
            options = Options()
            setattr(options, attribute, True)
            return new(4, 5), {key: 1.0}, {name}, frozenset({kind}), options

        return make

    yes: tuple[Any, ...] = ("scale", "sine", list, "shift")
    no: tuple[Any, ...] = ("other", "cosine", tuple, "no_shift")
    one_no = [(*yes[:n], no[n], *yes[n + 1 :]) for n in range(4)]
    one_yes = [(*no[:n], yes[n], *no[n + 1 :]) for n in range(4)]
    compare(context, program, *(call(*each) for each in (yes, *one_no, no, *one_yes, yes)))


@cases("compile.programs", more=True)
def other_sequences(context: CaseContext) -> None:
    """The program returns a sequence of the type and length of its argument. It is called with lists and tuples of
    several lengths, and each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(given: Any) -> Any:
        return type(given)(each + number for number, each in enumerate(given))

    def of(kind: type, length: int) -> Make:
        return lambda new: (kind(new(4, 5) for _ in range(length)),)

    calls = (list, 2), (tuple, 2), (list, 3), (list, 1), (tuple, 3)
    compare(context, program, *(of(*each) for each in calls))


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class _First:
    """A class whose instances and whose name a program may ask for."""


class _Second(_First):
    """Another one."""


class _Mode(enum.Enum):
    SHIFT = "shift"
    SCALE = "scale"


@cases("compile.programs", more=True)
def other_objects(context: CaseContext) -> None:
    """The program receives a function of torch, a Python function, a class, an object and a member of an enumeration. Each
    of them changes between calls, and each compiled call must leave the same outputs as the eager call."""

    def program(
        x: torch.Tensor, op: Any, function: Any, kind: type, thing: object, mode: _Mode
    ) -> Any:
        y = function(op(x))
        y = -y if kind is _First else y / 2
        y = y.exp() if isinstance(thing, _Second) else y.abs()
        return y + 1 if mode is _Mode.SHIFT else y * 3

    first = (torch.sin, _shifted, _First, _First(), _Mode.SHIFT)
    others = (torch.cos, _scaled, _Second, _Second(), _Mode.SCALE)
    changed = ((*first[:n], others[n], *first[n + 1 :]) for n in range(len(first)))
    compare(context, program, *(_with(*each) for each in (first, *changed, others, first)))


class _Repeated(nn.Module):
    """A module that applies a step several times: the number of times is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.times, self.scale, self.name = 2, 0.5, "sine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = (x.sin() if self.name == "sine" else x.cos()) * self.scale
        return x


@cases("compile.programs", more=True)
def other_attributes(context: CaseContext) -> None:
    """The attributes of a module change between calls: an integer, a floating-point number and a string. Each compiled
    call must leave the same outputs, inputs and gradients as the eager call."""
    module = _Repeated()

    def program(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = module(x)
        return made

    def having(times: int, scale: float, name: str) -> Make:
        def make(new: Inputs) -> tuple[Any, ...]:
            module.times, module.scale, module.name = times, scale, name
            return (new(4, 5, grad=True),)

        return make

    calls = (
        (2, 0.5, "sine"),
        (3, 0.5, "sine"),
        (2, 1.5, "sine"),
        (2, 0.5, "cosine"),
        (2, 0.5, "sine"),
    )
    compare(context, program, *(having(*each) for each in calls))


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@cases("compile.programs", more=True)
def other_modes(context: CaseContext) -> None:
    """The program is called with and without gradients, under another default dtype, and under another default device.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        twos = torch.full((5,), 2.0, device=x.device)  # of the default dtype
        return (x * twos).exp(), twos, torch.zeros(2).device.type

    states: Sequence[Callable[[], AbstractContextManager[Any]]] = (
        contextlib.nullcontext,
        torch.no_grad,
        lambda: _default_dtype(torch.bfloat16),
        lambda: torch.device("meta"),
        contextlib.nullcontext,
    )
    _compare_under(context, program, states)


@contextlib.contextmanager
def _without_gradients(mode: AbstractContextManager[Any]) -> Iterator[None]:
    """A mode, with gradients switched off."""
    with torch.no_grad(), mode:
        yield


@cases("compile.programs", requires={"autocast"}, more=True)
def in_an_autocast_region(context: CaseContext) -> None:
    """The program is called outside of an autocast region, inside, inside without gradients, and outside again. Each
    compiled call must leave the same outputs, with their dtypes, and the same gradients as the eager call."""
    kind = context.kind

    def program(x: torch.Tensor) -> Any:
        with torch.autocast(kind, enabled=False):
            exact = x @ x.t()
        return x @ x.t(), exact, x.softmax(1)

    states: Sequence[Callable[[], AbstractContextManager[Any]]] = (
        contextlib.nullcontext,
        lambda: torch.autocast(kind, torch.bfloat16),
        lambda: _without_gradients(torch.autocast(kind, torch.bfloat16)),
        contextlib.nullcontext,
    )
    _compare_under(context, program, states, rtol=3e-2, atol=3e-2)


def _compare_under(
    context: CaseContext,
    program: Callable[..., Any],
    states: Sequence[Callable[[], AbstractContextManager[Any]]],
    rtol: float = RTOL,
    atol: float = ATOL,
) -> None:
    """Compiles a program of one tensor once, calls it under each of the ``states``, which are modes of torch, and compares
    each call with an eager call."""
    with compiling(backend_of(context)) as compiler:
        compiled = compiler(program)
        for number, state in enumerate(states):
            eager, made = (_called(context, each, state) for each in (program, compiled))
            Comparison(context, f"call {number}", rtol, atol).judge(eager, made)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)


@cases("compile.programs", more=True)
def mode_that_stays(context: CaseContext) -> None:
    """The program switches gradients off or on and leaves them so. After each compiled call, the mode must be that after
    the eager call."""

    def program(x: torch.Tensor, on: bool) -> Any:
        y = x * 2
        torch.set_grad_enabled(on)
        return y, x * 3

    found = {}
    with compiling(backend_of(context)) as compiler:
        compiled = compiler(program)
        for on in (False, True, False):
            for before in (True, False):
                for name, each in (("eager", program), ("compiled", compiled)):
                    x = Inputs(context)(4, 5, grad=True)
                    with torch.set_grad_enabled(before):
                        made = each(x, on)
                        found[name] = torch.is_grad_enabled(), *(y.requires_grad for y in made)
                text = "the gradient mode, or what requires a gradient, differs after the compiled program"
                at = f"from {before} to {on}"
                context.same(found["compiled"], found["eager"], text, Kind.STATE, at)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)


@cases("compile.programs", more=True)
def gradient_of_a_gradient(context: CaseContext) -> None:
    """The gradient of a compiled program can be differentiated again, and is right; or the call raises an error that says
    that this is not supported. It must not be treated as a constant."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    def second(function: Callable[..., Any]) -> torch.Tensor:
        x = Inputs(context)(4, 5, grad=True)
        (grad,) = torch.autograd.grad(function(x), x, create_graph=True)
        (grad.square().sum() + x.sum()).backward()
        assert x.grad is not None
        return x.grad

    want = second(program)
    with compiling(backend_of(context)) as compiler:
        try:
            found = second(compiler(program))
        except RuntimeError as error:
            text = (
                "the error raised for the gradient of a gradient does not mention double backward"
            )
            context.check("double backward" in str(error), text, found=error, kind=Kind.RAISED)
            return
    text = "the gradient of a gradient of a compiled program differs from eager execution"
    context.assert_close(found, want, text, rtol=RTOL, atol=ATOL)


def _called(
    context: CaseContext, program: Any, state: Callable[[], AbstractContextManager[Any]]
) -> Any:
    """Calls a program under a mode of torch, with inputs that were created without it, and returns what the call left."""
    given = (Inputs(context)(4, 5, grad=True),)

    def under(*inputs: Any) -> Any:
        with state():
            return program(*inputs)

    return run(context, under, given, "contiguous")
