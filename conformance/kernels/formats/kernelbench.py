"""KernelBench's file: the classes ``Model`` and ``ModelNew``, and the functions ``get_inputs`` and
``get_init_inputs`` (https://github.com/ScalingIntelligence/KernelBench)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.formats.python_file import names_in
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request, Source


def takes(path: Path) -> bool:
    """Returns True if a file defines both models and the inputs."""
    return {"Model", "ModelNew", "get_inputs"} <= names_in(path)


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns the request for the model of a file. The benchmark calls a model with contiguous inputs of one shape, and so
    it is judged."""
    place = str(path.resolve())
    return [
        wanted.request(
            kernel=Source(place, "ModelNew"),
            form="kernelbench",
            reference=Source(place, "Model"),
            samples=Source(place, "get_inputs"),
            name=f"{path.stem}.ModelNew",
            strides=False,
            layouts=False,
            shapes=False,
        )
    ]


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    """Writes nothing: the format has no place for a verdict."""
    return []
