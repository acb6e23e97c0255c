"""``python -m tests.wrapped.table [FAULT GLOB…]``: which clause catches which fault of the wrapped device."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.table import report
from tests.trials import Bench
from tests.wrapped.faults import REGISTRY
from tests.wrapped.trial import RIG

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        sys.exit(report(Bench(RIG, Path(cache)), REGISTRY, sys.argv[1:]))
