"""The source of samples that every plan uses: torch's database of ops, and overloads of aten that none of its ops calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from opinfo.catalog import catalogue
from opinfo.overloads import overload_subjects
from opinfo.samples import RECIPE, SEED, Sample, draw
from opinfo.subject import Subject


class Database:
    """The sample source for torch's database of ops and, after its ops, for overloads of aten that none of the ops
    calls."""

    def subjects(self) -> Mapping[str, Subject]:
        """Returns all ops by id, in the database's order, and then the overloads. The first call takes seconds. Raises
        UnsupportedTorch if the database cannot be imported."""
        return _subjects()

    def samples(self, subject: Subject, dtype: str, *, seed: int = SEED) -> list[Sample]:
        """Returns the database's samples of an op from which a plan chooses. The same seed gives the same samples."""
        return draw(subject, dtype, seed=seed)

    def shapes(self, subject: Subject, dtype: str) -> list[Sample]:
        """Returns the same samples: they are small, and drawing makes their shapes."""
        return self.samples(subject, dtype)

    def describe(self) -> str:
        return RECIPE


@cache
def _subjects() -> Mapping[str, Subject]:
    return {**catalogue(), **overload_subjects()}


DATABASE = Database()
