"""The form of a KernelBench file: ``ModelNew`` is the kernel and ``Model`` is its reference. Both are created from the
same seed, so that their weights are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch

from conformance.kernels.forms.overrides import Override
from conformance.kernels.request import Request
from devices.registry import find
from opinfo.compare import tensors_of
from opinfo.subject import Source, loaded

#: The seed of the weights, and those of the inputs.
_SEED, _INPUTS = 42, (0, 1, 2, 3, 4)


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Returns a function that calls ``ModelNew`` on the device."""
    model = model_of(request.kernel.load_module(), request.kernel.name)
    return on(model, find(request.device, request.descriptor).torch_type)


def on(model: torch.nn.Module, torch_type: str) -> Callable[..., Any]:
    """Returns a function that calls a model on devices of type ``torch_type``."""
    there = model if torch_type == "cpu" else model.to(torch_type)
    forward: Callable[..., Any] = there.__call__
    return lambda *args, **kwargs: forward(*args, **kwargs)


def reference(request: Request) -> Callable[..., Any]:
    """Returns a function that calls ``Model`` in the dtype and on the device of the inputs."""
    source = request.reference
    assert source is not None
    model = model_of(source.load_module(), source.name)
    made: dict[Any, torch.nn.Module] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        floating = [t for t in tensors_of((args, kwargs)) if t.is_floating_point()]
        key = (floating[0].device, floating[0].dtype) if floating else (torch.device("cpu"), None)
        if key not in made:
            made[key] = deepcopy(model).to(key[0], key[1])
        return made[key](*args, **kwargs)

    return call


def samples(request: Request) -> Iterator[Any]:
    """Yields the arguments that ``get_inputs`` returns for several seeds."""
    assert request.samples is not None
    get_inputs = request.samples.load()
    for seed in _INPUTS:
        torch.manual_seed(seed)
        yield tuple(get_inputs())


def model_of(module: Any, name: str) -> torch.nn.Module:
    """Returns the model class ``name`` of a file, created from the fixed seed, in evaluation mode."""
    init = getattr(module, "get_init_inputs", list)
    torch.manual_seed(_SEED)
    given: list[Any] = init()
    torch.manual_seed(_SEED)
    made: torch.nn.Module = getattr(module, name)(*given)
    return made.eval()


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to ``ModelNew``."""
    return f"seeded_model({request.kernel.path!r}, {request.kernel.name!r}, DEVICE)", (
        seeded_model,
    )


def reference_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to ``Model``."""
    assert request.reference is not None
    return f"seeded_model({request.reference.path!r}, {request.reference.name!r}, 'cpu')", (
        seeded_model,
    )


def seeded_model(path: Any, name: Any, device: Any) -> Any:
    """Returns the model class ``name`` of a file, created from the fixed seed, on a device."""
    init, model = loaded(path, "get_init_inputs"), loaded(path, name)
    torch.manual_seed(42)
    given = init()
    torch.manual_seed(42)
    return model(*given).eval().to(device)
