"""The tensors that a call is said to write to are those that the CPU changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from opinfo.catalog import catalogue
from opinfo.compare import Arguments
from opinfo.exceptions import exceptions
from opinfo.samples import draw
from opinfo.written_tensors import written_tensors

NORMALIZATION, EMBEDDING = "mutates.running_stats", "mutates.max_norm"
WRITING = [
    op
    for op in catalogue()
    if {NORMALIZATION, EMBEDDING} & exceptions().families_of(*catalogue()[op].names)
]


@pytest.mark.parametrize("op", WRITING)
def test_the_tensors_that_an_op_writes_to_are_those_that_the_cpu_changes(op: str) -> None:
    """Others are judged: a kernel must leave them as they are, and their gradients are computed."""
    subject = catalogue()[op]
    families = exceptions().families_of(*subject.names)
    said: set[int] = set()
    changed: set[int] = set()
    for sample in draw(subject, "float32"):
        given = [each.clone() for each in sample.tensors]
        args, kwargs = sample.call.bind(given)
        with torch.no_grad():
            subject.reference(*args, **kwargs)
        written = written_tensors(subject, families, sample.call)
        pairs = enumerate(zip(given, sample.tensors))
        differ = {n for n, (new, old) in pairs if not torch.equal(new, old)}
        assert differ <= written, sample.call.form
        said |= written
        changed |= differ
    assert said == changed != set()


def test_parameters_are_those_of_the_schema_for_an_overload() -> None:
    aten: Any = torch.ops.aten
    subject: Any = SimpleNamespace(
        reference=aten.batch_norm.default,
        schemas=(aten.batch_norm.default._schema,),
        written_tensors=lambda _: frozenset(),
    )
    x = torch.ones(2, 3)
    weight, bias, mean, var = torch.ones(4, 3)
    for training in (True, False):
        call = Arguments((x, weight, bias, mean, var, training, 0.1, 1e-5, False), {})
        expected = {3, 4} if training else set()
        assert written_tensors(subject, {NORMALIZATION}, call) == expected
    of_python: Any = SimpleNamespace(
        reference=functional.batch_norm, schemas=(), written_tensors=lambda _: frozenset()
    )
    call = Arguments((x, mean, var, weight, bias), {"training": True})
    assert written_tensors(of_python, {NORMALIZATION}, call) == {1, 2}
