"""Stride references that come with this package: those of plan quick, for the torch that it is tested with. A first run, as in
CI, need not compute them for half a minute.

They are not trusted silently. They count for one commit of torch, and one in 32 that a run takes is computed as well: where it
is another, something has changed what it depends on, such as a vendor's package that replaces a kernel of torch's meta
device. Then no answer for that op is taken, and the run says so.

``python -m opinfo.shipped FOLDER`` writes them, of what runs have kept in a folder of ``$TORCH_CONFORMANCE_CACHE/references``.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.files import write_whole

FILE: Final = Path(__file__).with_name("shipped.bin")

#: Of a question's name, the letter and so many bytes are kept: of all that an op is asked, no two begin with the same.
_BYTES: Final = 6
_SIZE: Final = 1 + _BYTES
#: The letter of questions about the type of device under test. The others have the same answers for all.
OF_TYPE: Final = "d"
#: A question's name in the cache: where it is asked ("device", "elsewhere", "meta"), and a hash.
_NAME: Final = re.compile("[dem][0-9a-f]{24}")


class _Answers(msgspec.Struct):
    """Those of an op and dtype: the beginnings of the questions' names, and the place of each one's answer."""

    keys: bytes
    places: list[int]


class _Shipped(msgspec.Struct):
    """By the type of device those that depend on it, and under "" the others; then by the op and dtype."""

    commit: str  # of torch
    answers: list[Any]
    by_type: dict[str, dict[str, _Answers]]


def answers_for(torch_build: str, torch_type: str, name: str) -> Mapping[str, Any]:
    """The answers for an op and dtype (``add-float32``) by the beginnings of their questions' names; none for another torch.
    ``torch_build`` ends with torch's commit."""
    if (shipped := _read(FILE)) is None or torch_build.rpartition("-")[2] != shipped.commit:
        return {}
    found = {}
    for kind in ("", torch_type):
        if (of := shipped.by_type.get(kind, {}).get(name)) is not None:
            for number, place in enumerate(of.places):
                raw = of.keys[number * _SIZE : (number + 1) * _SIZE]
                found[chr(raw[0]) + raw[1:].hex()] = shipped.answers[place]
    return found


def beginning(key: str) -> str:
    """What is kept of a question's name."""
    return key[: 1 + 2 * _BYTES]


@cache
def _read(path: Path) -> _Shipped | None:
    """The file; None if there is none that can be read."""
    with suppress(OSError, zlib.error, msgspec.DecodeError):
        return msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=_Shipped)
    return None


def pack(folder: Path) -> bytes:
    """The file, of a folder with kept answers (``references/v2-2.13.0+cpu-cf30153c4c13``): in it, for each type of device, is
    a folder with a file for each op and dtype. Raises ValueError if it has none, or others."""
    places: dict[bytes, int] = {}
    by_type: dict[str, dict[str, dict[bytes, int]]] = {}
    for path in sorted(folder.glob("*/*.json")):
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if not all(map(_NAME.fullmatch, kept)):
            raise ValueError(
                f"{path}: expected stride references of this version that were all computed"
            )
        for key, answer in sorted(kept.items()):
            kind = path.parent.name if key[0] == OF_TYPE else ""
            place = places.setdefault(msgspec.msgpack.encode(answer), len(places))
            raw = key[0].encode() + bytes.fromhex(beginning(key)[1:])
            by_type.setdefault(kind, {}).setdefault(path.stem, {})[raw] = place
    if not by_type:
        raise ValueError(f"{folder}: expected folders of devices with files of stride references")
    shipped = _Shipped(
        folder.name.rpartition("-")[2],
        [msgspec.msgpack.decode(each) for each in places],
        {
            kind: {
                name: _Answers(b"".join(kept), [*kept.values()]) for name, kept in by_name.items()
            }
            for kind, by_name in by_type.items()
        },
    )
    return zlib.compress(msgspec.msgpack.encode(shipped), 9)


def main() -> None:
    """Write the file anew: ``python -m opinfo.shipped FOLDER``."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m opinfo.shipped FOLDER, of $TORCH_CONFORMANCE_CACHE/references")
    try:
        content = pack(Path(sys.argv[1]))
    except (ValueError, msgspec.DecodeError) as error:
        sys.exit(f"{error}. {FILE.name} is left as it is")
    write_whole(FILE, content)
    print(f"{FILE}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
