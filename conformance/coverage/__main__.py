"""Writes ``calls.json``, the map from the suite's calls to overloads of aten: ``python -m conformance.coverage``. It takes some
ten minutes of two cores."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from conformance.checks.scratch import delete_scratch, keep_scratch_in
from conformance.coverage.call_map import CALLS_FILE, encoded
from conformance.coverage.measure import measured
from devices.files import write_whole


def main() -> None:
    """Measures which overloads all checks of the plan call, and writes the map to ``calls.json``."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        keep_scratch_in(Path(folder))
        os.chdir(folder)  # cases may write files
        try:
            found = measured(say=lambda line: print(line, file=sys.stderr, flush=True), processes=2)
        finally:
            os.chdir(here)
            delete_scratch(Path(folder))
    write_whole(CALLS_FILE, encoded(found.result(), found.found.cases))


if __name__ == "__main__":
    main()
