"""What a script carries in the place of msgspec, and of checks that were made when the script was written."""

from __future__ import annotations

import dataclasses
from typing import Any


class Struct:
    """Stands in for msgspec.Struct: a dataclass."""

    def __init_subclass__(cls, frozen: Any = False, kw_only: Any = False, **options: Any) -> None:
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


class msgspec:
    """Stands in for the module msgspec, so that the script needs torch alone. Values are not converted."""

    Struct, ValidationError = Struct, ValueError
    Meta = staticmethod(lambda **limits: None)
    convert = staticmethod(lambda value, form: value)


def unchecked(value: Any) -> None:
    """Stands in for a check that was made when the script was written."""
