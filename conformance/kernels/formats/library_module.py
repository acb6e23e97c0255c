"""A Python module that overrides aten ops with ``torch.library``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.formats.python_file import attributes_in
from conformance.kernels.judge import overrides_of
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request, Source


def takes(path: Path) -> bool:
    """Returns True if a file mentions ``torch.library`` or ``Library``, and a function that registers kernels."""
    used = attributes_in(path)
    return bool(used & {"library", "Library"} and used & {"impl", "register_kernel"})


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns a request for each op that the module overrides. Another process imports the module to find these ops.
    Raises ConformError if the module cannot be imported."""
    source = Source(str(path.resolve()), "")
    return [
        wanted.request(kernel=source, form="library", target=target, name=f"{path.stem}: {target}")
        for target in overrides_of(source, wanted)
        if not wanted.target or target == wanted.target
    ]


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    """Writes nothing, because the format has no files for verdicts."""
    return []
