"""A pytest plugin that shuffles the items by $SHUFFLE_SEED, after the suite put them in the plan's order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    yield
    random.Random(os.environ["SHUFFLE_SEED"]).shuffle(items)
