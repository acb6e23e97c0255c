"""The cache file of stride references: one small file an op and dtype, written atomically.

An answer depends on nothing but the torch build, the device type and the question, so files lie under
``<cache>/references/<torch version>-<git hash>/<device type>/`` and are never invalidated.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from devices.cache import cache_root as cache_root
from devices.cache import write_whole

#: Raised when the meaning of a question or an answer changes.
FORMAT = 1


class ReferenceCache:
    """Answers for one op and dtype. ``save`` writes only what is new, through a rename."""

    def __init__(self, root: Path, torch_build: str, torch_type: str, name: str) -> None:
        folder = root / "references" / f"v{FORMAT}-{torch_build}" / torch_type
        self._path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.json"
        self._answers: dict[str, Any] = {}
        self._new = False
        try:
            self._answers = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            pass  # cold: every answer is computed and saved
        except (OSError, msgspec.DecodeError):
            # A damaged file costs its answers, which are computed anew and written over it.
            self._answers = {}

    def get(self, key: str) -> Any | None:
        return self._answers.get(key)

    def put(self, key: str, answer: Any) -> None:
        self._answers[key] = answer
        self._new = True

    def save(self) -> None:
        """Write the file where something was added. Raises OSError where the folder cannot be written."""
        if not self._new:
            return
        write_whole(self._path, msgspec.json.encode(self._answers))
        self._new = False
