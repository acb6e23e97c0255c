"""Folders for files that cases need only while they run.

The module imports only the standard library, because repro scripts contain it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The environment variable with the folder that holds all scratch folders of a run. Subprocesses inherit it.
VARIABLE = "CONFORM_SCRATCH"
#: Its name within the results folder.
NAME = "scratch"


def keep_scratch_in(results: Path) -> None:
    """Puts the scratch folders of this process, and of its subprocesses, into a results folder from now on. So a process
    that is killed leaves no files elsewhere; the end of the run deletes them."""
    os.environ[VARIABLE] = str(results / NAME)


def delete_scratch(results: Path) -> None:
    """Deletes what processes that were killed have left in the scratch folders of a results folder."""
    shutil.rmtree(results / NAME, ignore_errors=True)


def keep_tools_in(cache: Path) -> None:
    """Puts the caches and temporary folders of torch's compiler, of hypothesis and of pytest into a cache folder, unless
    their variables are set. torch makes the folder of its compiler's cache already when it is imported."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(cache / "pytest"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache / "hypothesis"))


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yields the path of an empty folder, which is deleted at the end of the block."""
    above = os.environ.get(VARIABLE)
    if above is not None:
        os.makedirs(above, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="conform-", dir=above, ignore_cleanup_errors=True
    ) as folder:
        yield folder
