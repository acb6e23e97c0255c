"""Where this package keeps what it can make again: stride references, the simulated device's library."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$TORCH_CONFORMANCE_CACHE``, else the user's cache folder."""
    explicit = os.environ.get("TORCH_CONFORMANCE_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torch-conformance"
