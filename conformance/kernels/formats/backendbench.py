"""BackendBench's folder: ``OP__OVERLOAD/OP__OVERLOAD_implementation*.py``, each with a function
``OP__OVERLOAD_kernel_impl`` (https://github.com/meta-pytorch/BackendBench)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request, Source


def takes(path: Path) -> bool:
    """Returns True for a folder of such op folders, or for the folder of one op."""
    return path.is_dir() and any(_implementations(path))


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns a request for each op: for its first implementation, in sorted order."""
    return [
        wanted.request(
            kernel=Source(str(file.resolve()), f"{op}_kernel_impl"),
            target=overload_of(op),
            name=op,
        )
        for op, file in _implementations(path)
    ]


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    """Writes nothing, because the format has no files for verdicts."""
    return []


def overload_of(folder: str) -> str:
    """Returns the overload that the name of an op's folder denotes. The last two underscores stand for a dot:
    ``add___Tensor`` denotes ``aten::add_.Tensor``."""
    name, _, overload = folder.rpartition("__")
    return f"aten::{name}.{overload}"


def _implementations(path: Path) -> list[tuple[str, Path]]:
    found = []
    for folder in sorted({path, *filter(Path.is_dir, path.iterdir())}):
        files = sorted(folder.glob(f"{folder.name}_implementation*.py"))
        if files and "__" in folder.name:
            found.append((folder.name, files[0]))
    return found
