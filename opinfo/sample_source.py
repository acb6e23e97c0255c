"""The interface of a source of subjects (functions under test) and their samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from opinfo.samples import Sample
from opinfo.subject import Subject


class SampleSource(Protocol):
    """A source of subjects (functions under test) and their samples. The planner, the workers, the minimiser and the
    random search use a source, and do not use torch's op database in any other way."""

    def subjects(self) -> Mapping[str, Subject]:
        """Returns all subjects by id, in a fixed order. The first call may take seconds."""
        ...

    def samples(self, subject: Subject, dtype: str, *, seed: int = ...) -> list[Sample]:
        """Returns the samples of a function under test for a dtype; a plan chooses from them. The same seed gives
        the same samples."""
        ...

    def shapes(self, subject: Subject, dtype: str) -> list[Sample]:
        """Returns the samples from which a plan finds out which clauses apply to a function under test. Their tensors need
        no elements (``Sample.shapes_only``)."""
        ...

    def __hash__(self) -> int: ...

    def describe(self) -> str:
        """Returns a text that changes whenever the samples may change. It is part of the plan's hash."""
        ...
