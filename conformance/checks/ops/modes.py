"""The ways in which a function is executed: eagerly, compiled, or captured in a graph and replayed. Procedures
(functions that make a call) and judges (functions that check the evidence of a call) work in each of these modes. Repro
scripts contain the functions below, which need only torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import OwnGraph, chain, general_graph
from conformance.checks.ops.calls import Invocation
from conformance.checks.ops.evidence import Evidence, called
from opinfo.compare import tensors_of


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to execute a function. ``wrap(function, **parameters)`` returns a function that executes ``function`` in
    this way. Without ``wrap``, functions are executed eagerly. The parameters are literals."""

    id: str
    wrap: Callable[..., Callable[..., Any]] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.wrap is None else self.wrap(function, **self.parameters)

    def source(self, function: str) -> tuple[str, tuple[Any, ...]]:
        """Returns the expression by which a repro script executes ``function`` in this mode, and the functions that the
        expression uses."""
        if self.wrap is None:
            return function, ()
        given = "".join(f", {name}={value!r}" for name, value in self.parameters.items())
        return f"{self.wrap.__name__}({function}{given})", (self.wrap,)


EAGER = Mode("eager")


@dataclass(frozen=True, slots=True)
class BesideEager:
    """The evidence of a call that was made twice on equal inputs: eagerly, and in the mode that is judged."""

    eager: Evidence
    made: Evidence | None = None  # None if the eager call raised


def called_beside_eager(call: Invocation, seed: int) -> BesideEager:
    """Makes a call eagerly and then in its mode, and returns the evidence of both. ``seed`` is set before each of them.
    Afterwards the inputs have their original bytes again."""
    torch.manual_seed(seed)
    eager = called(replace(call, function=call.eager or call.function))
    if eager.raised is not None:
        return BesideEager(eager)
    torch.manual_seed(seed)
    return BesideEager(eager, called(call))


# -- compiled


def compiled(function: Any, backend: Any, dynamic: Any = None) -> Any:
    """Returns the function compiled by ``torch.compile`` with ``fullgraph=True``, so that a graph break raises an
    exception."""
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


# -- captured and replayed


class NotReplayed(Exception):
    """Raised if a call could not be captured or replayed. ``stage`` says during which of the two the device raised an
    exception, which is ``__cause__``."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


def replayed(function: Any, own: str) -> Any:
    """Returns a function that captures a call of ``function`` while all elements of the inputs are zero, and then
    replays the graph with the real values of the inputs. The random numbers of the replay begin at the current seed.
    ``own`` names a graph class of the device's module, for a device without ``torch.accelerator.Graph``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        inputs = [each for each in tensors_of((args, kwargs)) if each.layout == torch.strided]
        device, seed = inputs[0].device, torch.initial_seed()
        values = [each.clone() for each in inputs]
        for each in inputs:
            single(each).zero_()
        torch.accelerator.synchronize()
        graph, stream = make_graph(own, device), torch.Stream(device=device)
        stage = "while the call was captured"
        try:
            try:
                with stream, graph:
                    result = function(*args, **kwargs)
            except Exception:  # raised again, after the device can capture again
                torch.accelerator.synchronize()
                end_capture(own, device)
                raise
            finally:
                for each, value in zip(inputs, values):
                    single(each).copy_(single(value, each))
            torch.manual_seed(seed)
            torch.accelerator.synchronize()
            stage = "while the graph was replayed"
            with stream:
                graph.replay()
            torch.accelerator.synchronize()
        except Exception as error:
            raise NotReplayed(stage) from chain(error)[-1]
        return result

    return run


def single(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Returns a view that has each element of a tensor only once: every dimension of stride 0 is reduced to size 1. The
    strides are those of ``like``, or by default of the tensor itself."""
    for dim, step in enumerate((tensor if like is None else like).stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def end_capture(own: str, device: torch.device) -> None:
    """Captures a simple op, to end the state that a failed capture may leave: until a capture succeeds, a device may
    refuse to draw random numbers, so that the next call could fail. (The clause ``graphs.recovery`` checks this state
    itself.)"""
    x = torch.zeros(1, device=device)
    torch.accelerator.synchronize()
    with suppress(Exception), torch.Stream(device=device), make_graph(own, device):
        x.add_(1)
    torch.accelerator.synchronize()


def make_graph(own: str, device: torch.device) -> Any:
    """Returns a ``torch.accelerator.Graph``. If torch has no graphs for the device, returns a graph of the class named
    ``own`` in the device's module."""
    general = general_graph(not own)
    if general is None:
        return OwnGraph(attrgetter(own)(getattr(torch, device.type))(False))
    return general
