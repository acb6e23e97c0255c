"""Temporary folders for files that cases need only while they run.

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
    """From now on, creates the temporary folders of this process and of its subprocesses inside a results folder. So a
    process that is killed leaves no files elsewhere, and the end of the run deletes them."""
    os.environ[VARIABLE] = str(results / NAME)


def delete_scratch(results: Path) -> None:
    """Deletes the temporary folders in a results folder that killed processes have left behind."""
    shutil.rmtree(results / NAME, ignore_errors=True)


def keep_tools_in(cache: Path) -> None:
    """Makes torch's compiler, hypothesis and pytest put their caches and temporary folders into a cache folder, except
    where the user has set the environment variable for such a folder. This must be called before torch is imported,
    because the import creates the folder of the compiler's cache."""
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
