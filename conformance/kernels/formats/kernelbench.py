"""KernelBench's file format: a file with the classes ``Model`` and ``ModelNew``, and the functions ``get_inputs`` and
``get_init_inputs`` (https://github.com/ScalingIntelligence/KernelBench)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.formats.python_file import names_in
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request, Source


def takes(path: Path) -> bool:
    """Returns True if a file defines both classes and both functions."""
    return {"Model", "ModelNew", "get_inputs"} <= names_in(path)


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns the request for the kernel of a file. Inputs are contiguous and keep the shapes of ``get_inputs``, as in
    the benchmark."""
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
    """Writes nothing, because the format has no files for verdicts."""
    return []
