"""The types of the whole project: mypy, beside the other tests."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.plugin.running import CHECKOUT


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed: extra `lint`")
def test_types_are_right() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
