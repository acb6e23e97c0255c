"""How far results and gradients in the 16-bit dtypes may be from those in float64.

An element may be off by ``ULPS``, and in addition by ``FACTOR`` times the change that roundings of the operands, and of what
is saved for backward, make in float64. Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Largest accepted error in units in the last place of the largest element, by dtype, as for results on samples (bounds.toml
#: of the suite precision).
ULPS: Final[Mapping[str, float]] = {"bfloat16": 2.0, "float16": 4.0}
#: Relative size of one rounding, by dtype.
ROUNDINGS: Final[Mapping[str, float]] = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
#: How many times the change by roundings is accepted in addition: for the roundings of the result, which backward may read,
#: and of the steps of backward.
FACTOR: Final = 4.0
