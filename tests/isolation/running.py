"""Mishaps for a run, as ``planting`` takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def planted(mishaps: Mapping[str, str], once: Path | None = None) -> dict[str, str]:
    """The environment that plants these mishaps, by cell; ``once`` is a folder that makes each happen once."""
    found = {"PLANTED": json.dumps(dict(mishaps))}
    if once is not None:
        once.mkdir(exist_ok=True)
        found["PLANTED_ONCE"] = str(once)
    return found
