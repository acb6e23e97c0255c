"""A plug-in that writes down the order in which named functions of ours are called: FILE:QUALIFIED.NAME, one a line.

``TRACED`` has the names, separated by commas; ``TRACED_TO`` is the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import pytest

_CHECKOUT = Path(__file__).resolve().parents[3]
_WANTED = {
    (str(_CHECKOUT / file), name)
    for file, _, name in (each.partition(":") for each in os.environ["TRACED"].split(","))
}
_called: list[str] = []


def _profile(frame: FrameType, event: str, _: object) -> None:
    code = frame.f_code
    if event == "call":
        # Python 3.10 has no qualified names of functions.
        name = getattr(code, "co_qualname", code.co_name)
        if (code.co_filename, name) in _WANTED:
            file = Path(code.co_filename).relative_to(_CHECKOUT).as_posix()
            _called.append(f"{file}:{name}")


sys.setprofile(_profile)


def pytest_unconfigure(config: pytest.Config) -> None:
    sys.setprofile(None)
    Path(os.environ["TRACED_TO"]).write_text("\n".join(_called), encoding="utf-8")
