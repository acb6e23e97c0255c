"""The stride references that come with the package are wrong: something has changed what they are of. Nine are taken before
one is computed as well."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from opinfo import reference, shipped


def _wrong(torch_build: str, torch_type: str, name: str) -> Mapping[str, Any]:
    answer = [[[2, 3], [7, 2], 0, None, "float64"]]
    return dict.fromkeys(shipped.answers_for(torch_build, torch_type, name), answer)


reference.answers_for = _wrong
reference.is_due = cycle([False] * 9 + [True]).__next__
