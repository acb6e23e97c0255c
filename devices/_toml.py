"""The TOML parser: tomllib where Python has it (3.11), else tomli, which is the same code."""

from __future__ import annotations

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]

__all__ = ["tomllib"]
