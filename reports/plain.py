"""Removes the boilerplate that torch adds to many of its messages. ``boilerplate.toml`` lists the boilerplate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from devices.files import read_toml
from reports.model import RunError


class _Boilerplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``boilerplate.toml``. The comments in that file explain the fields."""

    endings: tuple[str, ...]
    sentences: tuple[str, ...]


_KNOWN: Final = read_toml(Path(__file__).with_name("boilerplate.toml"), _Boilerplate, RunError)

#: A sentence ends with a period before a space, and not with one inside a name, a number or an address.
_BEFORE: Final = r"\s*(?:[,;]\s+)?"
_ENDINGS: Final = re.compile(f"{_BEFORE}(?:{'|'.join(_KNOWN.endings)}).*", re.DOTALL)
_SENTENCES: Final = re.compile(
    f"{_BEFORE}(?:{'|'.join(_KNOWN.sentences)})" + r".*?(?:\.\)?(?=\s|$)|\)(?=\s|$)|(?=\n)|$)"
)


def without_boilerplate(text: str) -> str:
    """Returns a message without torch's boilerplate. If the message consists only of boilerplate, returns the unchanged
    message."""
    cut = _SENTENCES.sub("", _ENDINGS.sub("", text)).strip()
    return cut or text
