"""The table of samplers: each case asks each row what the row allows."""

from __future__ import annotations

import pytest

from conformance.suites.random import SUITE
from conformance.suites.random.samplers import SAMPLERS, Form

_TENSORS = {"same_shape", "shaped", "far", "ends", "of_each_form", "one_seed"}
_VECTORS = {"same_seed", "as_documented", "state_between"}
#: The cases that ask every sampler of a form.
ASKED = {
    Form.FILL: _VECTORS | _TENSORS | {"same_layout", "inside_its_view"},
    Form.LIKE: _TENSORS,
    Form.SHAPE: _VECTORS | {"ends", "of_each_form", "one_seed"},
    Form.PARAMETERS: _TENSORS | {"of_each", "special_parameters"},
    Form.OTHER: set(),
}
#: Cases about single samplers.
_SINGLE = {"default", "fine"}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_case_asks_a_sampler_what_its_row_allows(name: str) -> None:
    row = SAMPLERS[name]
    columns = {
        "other_arguments": row.others,
        "of_each": row.each.makers,
        "special_parameters": row.each.special,
        "into": row.out,
        **dict.fromkeys(_VECTORS, row.draws_vectors),
    }
    expected = ASKED[row.form] | {case for case, value in columns.items() if value}
    found = {case.check.__name__ for case in SUITE.cases if case.arguments == (name,)}
    assert found - _SINGLE == expected
