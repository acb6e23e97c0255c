"""Where subjects and their samples come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from opinfo.samples import Sample
from opinfo.subject import Subject


class SampleSource(Protocol):
    """Where subjects and their samples come from. Planner, workers, the minimiser and the search ask a source, and know
    nothing else of torch's op database."""

    def subjects(self) -> Mapping[str, Subject]:
        """Returns all subjects by id, in a fixed order. The first call may take seconds."""
        ...

    def samples(self, subject: Subject, dtype: str, *, seed: int = ...) -> list[Sample]:
        """Returns the samples of a subject from which a plan chooses. The same seed gives the same samples."""
        ...

    def __hash__(self) -> int: ...

    def describe(self) -> str:
        """Returns a text that changes whenever the samples may change. It is part of the plan's hash."""
        ...
