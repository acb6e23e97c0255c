"""Kernels with plausible mistakes fail, and kernels that are right in an unusual way pass."""

from __future__ import annotations

import pytest

from tests.kernels.plausible import plausible
from tests.kernels.test_kernels import judged
from tests.kernels.unusual import unusual


@pytest.mark.slow
@pytest.mark.parametrize("name", plausible.entries)
def test_a_kernel_with_a_plausible_mistake_fails_for_its_reason(name: str) -> None:
    entry = plausible.entries[name]
    assert entry.checks <= {each.check for each in judged(entry).faults}


@pytest.mark.slow
@pytest.mark.parametrize("name", unusual.entries)
def test_a_kernel_that_is_right_in_an_unusual_way_passes(name: str) -> None:
    found = judged(unusual.entries[name])
    assert found.faults == () and found.right
