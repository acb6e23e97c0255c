"""Reading the plans of shards: what all of them hold is parsed, unfolded and summed once.

A shard's ``plan.json`` is its run's plan, to the byte, up to the cells that the shard selected. Where that is
so the work for what comes before is shared; any other text is read as every run's is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from reports.plan import ADDED, Plan, RunError, digest, parse_document

_OWN: Final = b',"selected":'


class SharedPlans:
    """What was read of the plans so far. ``plan`` is the last one, whose cells the next may have too."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self._head = b""
        self._document: dict[str, Any] = {}
        self._sum = hashlib.sha256()

    def parse(self, raw: bytes, source: str) -> dict[str, Any]:
        """As ``parse_document``. Raises RunError."""
        head, mark, tail = raw.partition(_OWN)
        if not mark:
            return parse_document(raw, source)
        try:
            if head != self._head:
                self._take(head, source)
            own = parse_document(b"{" + mark[1:] + tail, source)
        except RunError:
            return parse_document(raw, source)  # it is nested elsewhere, or damaged: this says how
        if not own.keys().isdisjoint(self._document):
            return parse_document(raw, source)
        return {**self._document, **own}

    def digest(self, document: Mapping[str, Any]) -> str:
        """As ``digest``, of a document that ``parse`` gave, less what the writer added."""
        head = list(self._document)
        if not head or list(document)[: len(head)] != head:
            return digest(document)
        if any(document[name] is not self._document[name] for name in head):
            return digest(document)
        own = {name: part for name, part in document.items() if name not in self._document}
        if not own or not own.keys().isdisjoint(ADDED):
            return digest(document)
        summed = self._sum.copy()
        summed.update(("," + _dumped(own)[1:]).encode("ascii"))
        return summed.hexdigest()

    def _take(self, head: bytes, source: str) -> None:
        self._document = parse_document(head + b"}", source)
        self._head = head
        self._sum = hashlib.sha256(_dumped(self._document)[:-1].encode("ascii"))


def _dumped(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
