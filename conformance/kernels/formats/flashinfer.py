"""FlashInfer's trace folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request


def takes(path: Path) -> bool:
    """Returns True for a folder with definitions and solutions."""
    return (path / "definitions").is_dir() and (path / "solutions").is_dir()


def requests(path: Path, wanted: Wanted) -> list[Request]:
    return []


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    return []
