"""Where this package keeps what it can make again: stride references, the simulated device's library."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """``$TORCH_CONFORMANCE_CACHE``, else the user's cache folder."""
    explicit = os.environ.get("TORCH_CONFORMANCE_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torch-conformance"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through a rename: whoever reads it meanwhile has the old one or the new. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
