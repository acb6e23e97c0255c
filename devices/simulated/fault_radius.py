"""What faults below the kernels change beside the cells of their own clauses: globs over ``clause::case``.

A fault without an entry changes nothing else in the suites that are run with it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ALLOCATOR: Final[dict[str, tuple[str, ...]]] = {}

_STREAMS: Final[dict[str, tuple[str, ...]]] = {}

_TRANSFER: Final[dict[str, tuple[str, ...]]] = {}

_GRAPHS: Final[dict[str, tuple[str, ...]]] = {}

_DEVICE: Final[dict[str, tuple[str, ...]]] = {}

_DISPATCH: Final[dict[str, tuple[str, ...]]] = {}

_RANDOM: Final[dict[str, tuple[str, ...]]] = {}

RADIUS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {**_ALLOCATOR, **_STREAMS, **_TRANSFER, **_GRAPHS, **_DEVICE, **_DISPATCH, **_RANDOM}
)
"""By fault."""
