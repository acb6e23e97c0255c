"""The form of a FlashInfer-Bench solution in Python or Triton, which is compared with the reference of its
definition."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from conformance.kernels.data.flashinfer import Definition, Solution, TensorSpec, Trace, Workload
from conformance.kernels.forms.overrides import Override
from conformance.kernels.request import NotLoadable, Request
from conformance.kernels.request import Source as Place
from devices.registry import find
from opinfo.compare import tensors_of
from opinfo.subject import Source

#: The inputs have the dtypes of the definition.
KEEPS_DTYPES: Final = True

_LANGUAGES: Final = frozenset({"python", "triton"})
#: How many calls are made of each workload, with other values.
_DRAWS: Final = 2


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Returns the solution as a function that returns its outputs. If the solution is in destination-passing style, the
    function allocates the outputs and passes them to the solution."""
    solution = _read(request.kernel.path, Solution)
    definition = definition_of(request)
    if solution.spec.language not in _LANGUAGES:
        raise NotLoadable(
            f"{solution.name}: expected a solution in python or triton, found "
            f"{solution.spec.language}, which is not built here"
        )
    folder = Path(tempfile.mkdtemp())  # the process removes it with its other files
    for each in solution.sources:
        path = (folder / each.path).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise NotLoadable(f"{each.path}: expected a path inside of the solution's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(each.content, encoding="utf-8")
    file, _, name = solution.spec.entry_point.partition("::")
    function: Callable[..., Any] = Place(str(folder / file), name).load()
    if not solution.spec.destination_passing_style:
        return lambda *args: _in_order(function(*args), definition)
    device = find(request.device, request.descriptor).torch_type

    def with_outputs(*args: Any) -> Any:
        axes = axes_of(definition, args)
        outputs = [_empty(spec, axes, device) for spec in definition.outputs.values()]
        function(*args, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return with_outputs


def reference(request: Request) -> Callable[..., Any]:
    """Returns the function ``run`` of the definition's reference module."""
    definition = definition_of(request)
    path = Path(tempfile.mkdtemp()) / "reference.py"
    path.write_text(definition.reference, encoding="utf-8")
    run: Callable[..., Any] = Place(str(path), "run").load()
    return lambda *args: _in_order(run(*args), definition)


def samples(request: Request) -> Iterator[Any]:
    """Yields the arguments of each workload, with random values from several seeds. Workloads whose tensors are stored
    in a file are skipped."""
    definition = definition_of(request)
    assert request.samples is not None
    for number, (_, workload) in enumerate(workloads_in(Path(request.samples.path))):
        if any(each.type == "safetensors" for each in workload.inputs.values()):
            continue
        axes = {n: each.value for n, each in definition.axes.items() if each.value is not None}
        axes |= workload.axes
        for draw in range(_DRAWS):
            random = torch.Generator().manual_seed(1000 * number + draw)
            yield tuple(
                workload.inputs[name].value if spec.shape is None else _random(spec, axes, random)
                for name, spec in definition.inputs.items()
            )


def definition_of(request: Request) -> Definition:
    """Returns the definition that a solution implements."""
    assert request.reference is not None
    found: Definition = _read(request.reference.path, Definition)
    return found


def workloads_in(path: Path) -> Iterator[tuple[Trace, Workload]]:
    """Yields each line of a file of workloads, as the trace and as the workload in it."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            trace = msgspec.json.decode(line, type=Trace)
            yield trace, msgspec.convert(trace.workload, Workload)


def axes_of(definition: Definition, args: Any) -> dict[str, int]:
    """Returns the size of each axis, from the constants of the definition and the shapes of the inputs."""
    axes = {n: each.value for n, each in definition.axes.items() if each.value is not None}
    for spec, value in zip(definition.inputs.values(), args):
        if spec.shape is not None:
            axes |= dict(zip(spec.shape, value.shape))
    return axes


def _empty(spec: TensorSpec, axes: dict[str, int], device: str) -> torch.Tensor:
    shape = [axes[name] for name in spec.shape or ()]
    return torch.empty(shape, dtype=getattr(torch, spec.dtype), device=device)


def _random(spec: TensorSpec, axes: dict[str, int], random: torch.Generator) -> torch.Tensor:
    shape, dtype = [axes[name] for name in spec.shape or ()], getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=random).to(dtype)
    return torch.randint(0, 2, shape, generator=random).to(dtype)


def _in_order(result: Any, definition: Definition) -> Any:
    if isinstance(result, dict):
        result = tuple(result[name] for name in definition.outputs)
    found = tensors_of(result)
    return found[0] if len(found) == 1 else tuple(found)


def _read(path: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise NotLoadable(f"{path}: {error}") from None


def script_source(request: Request) -> Source:
    """Raises ValueError: no repro script can refer to the solution, because its files exist only while it is judged."""
    raise ValueError("the files of a FlashInfer-Bench solution exist only while it is judged")


reference_source = script_source
