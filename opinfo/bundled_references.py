"""Stride references that are shipped with the package: those of plan quick, for the torch version with which the
package is tested. They save about half a minute in a run without cached references, such as in CI.

The references apply to one commit of torch only. Some references are verified: of the shipped references that a run
uses, one in 32 is also computed. If the two results differ, something on which the references depend has changed, such
as a meta kernel of torch that a vendor's package replaces. In this case, no shipped reference is used for the op and
dtype any more, and the run reports the difference.

``python -m opinfo.bundled_references FOLDER`` writes the file, from a folder below ``$TORCH_CONFORMANCE_CACHE/references`` that
runs have filled.
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

#: Keys are shortened to their letter and 6 bytes of hash; these are unique among the questions of one op.
_BYTES: Final = 6
_SIZE: Final = 1 + _BYTES
#: The first letter of questions whose answer depends on the device type. Other answers are the same for all types.
OF_TYPE: Final = "d"
#: A key in the cache: the first letter of where the question is asked ("device", "elsewhere", "meta"), and a hash.
_NAME: Final = re.compile("[dem][0-9a-f]{24}")


class _Answers(msgspec.Struct):
    """The stride references for one op and dtype: the shortened keys of the calls, concatenated, and the position of
    each reference in the list of all references."""

    keys: bytes
    places: list[int]


class _Shipped(msgspec.Struct):
    """The content of the file of shipped references. ``by_type`` has the references by device type, and below that
    by op and dtype. References that do not depend on the device type are stored under the type ""."""

    commit: str  # the commit of torch that the answers are for
    answers: list[Any]
    by_type: dict[str, dict[str, _Answers]]


def answers_for(torch_build: str, torch_type: str, name: str) -> Mapping[str, Any]:
    """Maps the shortened key of each call of an op and dtype (``add-float32``) to the call's stride reference. The
    mapping is empty if the file is for another commit of torch.

    ``torch_build`` ends with torch's commit.
    """
    if (shipped := _read_file(FILE)) is None or torch_build.rpartition("-")[2] != shipped.commit:
        return {}
    found = {}
    for kind in ("", torch_type):
        if (of := shipped.by_type.get(kind, {}).get(name)) is not None:
            for number, place in enumerate(of.places):
                raw = of.keys[number * _SIZE : (number + 1) * _SIZE]
                found[chr(raw[0]) + raw[1:].hex()] = shipped.answers[place]
    return found


def beginning(key: str) -> str:
    """Returns the beginning of a call's cache key, by which the file of shipped references stores the call."""
    return key[: 1 + 2 * _BYTES]


@cache
def _read_file(path: Path) -> _Shipped | None:
    """Returns the content of a file of shipped references; None if the file is missing or unreadable."""
    with suppress(OSError, zlib.error, msgspec.DecodeError):
        return msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=_Shipped)
    return None


def pack(folder: Path) -> bytes:
    """Returns the content of a file of shipped references, made from a folder of cached references
    (``references/v2-2.13.0+cpu-cf30153c4c13``), which has a folder for each device type with one file for each op and
    dtype.

    Raises ValueError if the folder has no such files, or if a file has a different format or was made with shipped
    references.
    """
    places: dict[bytes, int] = {}
    by_type: dict[str, dict[str, dict[bytes, int]]] = {}
    for path in sorted(folder.glob("*/*.json")):
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if not all(map(_NAME.fullmatch, kept)):
            raise ValueError(
                f"{path}: expected stride references in the current format, computed without the shipped references"
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
    """Writes the file of shipped references again. Called by ``python -m opinfo.bundled_references FOLDER``."""
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python -m opinfo.bundled_references FOLDER, where FOLDER is a folder in $TORCH_CONFORMANCE_CACHE/references"
        )
    try:
        content = pack(Path(sys.argv[1]))
    except (ValueError, msgspec.DecodeError) as error:
        sys.exit(f"{error}. {FILE.name} is unchanged")
    write_whole(FILE, content)
    print(f"{FILE}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
