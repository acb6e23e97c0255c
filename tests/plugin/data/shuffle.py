"""A pytest plugin that reverses or shuffles the items by $SHUFFLE_SEED."""

from __future__ import annotations

import os
import random

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    random.Random(os.environ["SHUFFLE_SEED"]).shuffle(items)
