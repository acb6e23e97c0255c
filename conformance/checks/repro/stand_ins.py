"""Replacements that repro scripts contain for msgspec, and for checks that were made when the script was written."""

from __future__ import annotations

import dataclasses
from typing import Any


class Struct:
    """A replacement of msgspec.Struct: every subclass becomes a dataclass."""

    def __init_subclass__(cls, frozen: Any = False, kw_only: Any = False, **options: Any) -> None:
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


class msgspec:
    """A replacement of the module msgspec, so that the script needs only torch. Values are not converted."""

    Struct, ValidationError = Struct, ValueError
    Meta = staticmethod(lambda **limits: None)
    convert = staticmethod(lambda value, form: value)


def unchecked(value: Any) -> None:
    """Does nothing. Replaces a check that was made when the script was written."""
