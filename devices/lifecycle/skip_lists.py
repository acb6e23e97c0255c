"""Reads the skip lists of other test suites, and finds the cells that their entries are about.

A skip list names tests of PyTorch's own suite that a backend does not pass, such as ``test_out_mean_xpu_float32``. The
name of such a test ends with an operator, a device and a dtype. Four formats are read: the Python dictionary of
torch-xpu-ops, the YAML of torch-spyre, the JSON of torch_npu (which is also that of PyTorch's disabled tests), and plain
lists with one name per line. No code of a skip list is executed.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from devices.cell import CellKey
from devices.descriptor import DTYPES
from devices.errors import ConformError, listing, suggestion
from devices.files import explained, read_regular

#: Device types that names of tests contain, besides those of the runs.
_DEVICES: Final = frozenset(
    ("cpu", "cuda", "xpu", "npu", "mps", "hpu", "mtia", "spyre", "privateuse1", "lazy", "xla")
)
#: Modes of torch-spyre in which a test may fail.
_FAILING: Final = frozenset(("skip", "xfail", "xfail_strict"))
#: PyTorch's names of dtypes in tests that are not the names of dtypes in torch.
_SHORT: Final = MappingProxyType({"int": "int32", "float": "float32", "double": "float64"})


class SkipListError(ConformError):
    """The error for a skip list that cannot be read. Its text names the file, and the line if it is known."""


@dataclass(frozen=True, slots=True)
class SkipEntry:
    """An entry of a skip list: the name of a test (or of an operator, a cell or a part of a name), and why it is
    skipped, which may be empty. ``dtypes`` are the dtypes to which the entry is limited, if it says so itself."""

    name: str
    why: str = ""
    dtypes: frozenset[str] = frozenset()


def read_skip_list(path: Path, format_name: str | None = None) -> list[SkipEntry]:
    """Returns the entries of a skip list. ``format_name`` is a key of :data:`FORMATS`; by default the extension of the
    file decides. Raises SkipListError."""
    name = format_name or _EXTENSIONS.get(path.suffix.lower(), "plain")
    with explained(SkipListError, path, "cannot be read"):
        raw = read_regular(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SkipListError(f"{path}: the skip list is not UTF-8: save it as UTF-8") from None
    try:
        found = list(FORMATS[name](text))
    except _Malformed as error:
        raise SkipListError(f"{path}: {error}") from None
    if not found:
        raise SkipListError(
            f"{path}: no entry was found; expected {_EXPECTED[name]} (other formats: "
            f"{listing(FORMATS.keys() - {name})}, see --format)"
        )
    return found


class _Malformed(ValueError):
    """The error for a text that is not in the expected format."""


# -- the formats


def _python(text: str) -> Iterator[SkipEntry]:
    """Yields the strings in the lists and tuples of all dictionaries and lists that a Python module assigns. The reason
    of a string is the comment above it, or the comment at the end of its line."""
    try:
        tree = ast.parse(text)
        comments = _comments(text)
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        raise _Malformed(f"{where}not Python: {getattr(error, 'msg', error)}") from None
    for node in tree.body:
        value = getattr(node, "value", None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or value is None:
            continue
        groups = value.values if isinstance(value, ast.Dict) else [value]
        for group in groups:
            if not isinstance(group, (ast.Tuple, ast.List, ast.Set)):
                continue
            why, last = "", group.lineno - 1
            for item in group.elts:
                if not (isinstance(item, ast.Constant) and isinstance(item.value, str)):
                    continue
                above = [comments[n][0] for n in range(last + 1, item.lineno) if n in comments]
                above = [each for each in above if each]
                why = " ".join(above) if above else why
                own = comments.get(item.end_lineno or item.lineno, ("", ""))[1]
                last = item.end_lineno or item.lineno
                yield SkipEntry(item.value, own or why)


def _comments(text: str) -> dict[int, tuple[str, str]]:
    """Returns the comments of a Python text by line: a comment on a line of its own first, one after code second."""
    found: dict[int, tuple[str, str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("#").strip()
            own = not token.line[: token.start[1]].strip()
            found[token.start[0]] = (said, "") if own else ("", said)
    return found


def _json(text: str) -> Iterator[SkipEntry]:
    """Yields the keys of a JSON object; all texts in its values are the reason. A list of names is accepted too."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Malformed(f"not JSON: {error}") from None
    if isinstance(data, list):
        data = {name: "" for name in data if isinstance(name, str)}
    if not isinstance(data, dict):
        raise _Malformed(f"expected {_EXPECTED['json']}, found {type(data).__name__}")
    for name, why in data.items():
        yield SkipEntry(name, ": ".join(_texts(why)))


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, str) and data.strip():
        yield data.strip()
    elif isinstance(data, list):
        for each in data:
            yield from _texts(each)


def _yaml(text: str) -> Iterator[SkipEntry]:
    """Yields the tests of a torch-spyre configuration that may fail, and the operators and dtypes of which it expects
    that every test fails."""
    try:
        import yaml
    except ImportError:
        raise _Malformed(
            "the file is YAML, which needs the package PyYAML: pip install pyyaml"
        ) from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise _Malformed(f"not YAML: {said:.200}") from None
    config = data.get("test_suite_config", data) if isinstance(data, dict) else None
    if not isinstance(config, dict):
        raise _Malformed(f"expected {_EXPECTED['yaml']}, found {type(data).__name__}")
    for file in _tables(config.get("files")):
        default = file.get("unlisted_test_mode", "")
        for test in _tables(file.get("tests")):
            mode = test.get("mode", default)
            if mode in _FAILING:
                for name in _texts(test.get("names")):
                    why = " ".join(_texts([test.get("reason"), test.get("issue")]))
                    yield SkipEntry(name, why or f"mode {mode}")
    overall = config.get("global")
    overall = overall if isinstance(overall, dict) else {}
    for op in _tables(overall.get("supported_ops")):
        failing = {str(d.get("name")) for d in _tables(op.get("dtypes")) if d.get("force_xfail")}
        if op.get("force_xfail") or failing:
            yield SkipEntry(str(op.get("name")), "force_xfail", frozenset(failing))
    for dtype in _tables(overall.get("supported_dtypes")):
        if dtype.get("force_xfail"):
            yield SkipEntry("*", "force_xfail", frozenset((str(dtype.get("name")),)))


def _tables(data: object) -> Iterator[dict[str, Any]]:
    if isinstance(data, list):
        yield from (each for each in data if isinstance(each, dict))


def _plain(text: str) -> Iterator[SkipEntry]:
    """Yields one entry per line. The reason is the comment at the end of the line, or the comments above it up to an
    empty line."""
    why: list[str] = []
    fresh = False
    for line in text.splitlines():
        name, _, comment = line.partition("#")
        name, comment = name.strip(), comment.strip()
        if name:
            yield SkipEntry(name, comment or " ".join(why))
            fresh = False
        elif comment:
            why = [*why, comment] if fresh else [comment]
            fresh = True
        elif not line.strip():
            why, fresh = [], False


#: By name: the reader of a format.
FORMATS: Final[Mapping[str, Callable[[str], Iterable[SkipEntry]]]] = {
    "python": _python,
    "yaml": _yaml,
    "json": _json,
    "plain": _plain,
}
_EXTENSIONS: Final = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_EXPECTED: Final = {
    "python": "a dictionary of tuples of names, as in torch-xpu-ops",
    "yaml": "a configuration of torch-spyre with test_suite_config and files",
    "json": "an object whose keys are names of tests, as in torch_npu",
    "plain": "one name per line",
}


# -- the cells of an entry


@dataclass(frozen=True, slots=True)
class Matched:
    """The cells of a skip list: for each cell the first entry that is about it, and the entries that are about no
    planned cell."""

    cells: Mapping[CellKey, SkipEntry]
    unmatched: tuple[SkipEntry, ...]


def cells_of(
    entries: Iterable[SkipEntry], planned: Collection[CellKey], devices: Collection[str] = ()
) -> Matched:
    """Returns the planned cells that the entries are about. ``devices`` are further device types that names of tests
    contain.

    An entry is about the cell that it names; otherwise about the operator and dtype at the end of a test's name;
    otherwise about the operators whose names contain it as whole words.
    """
    index = _Index(planned, frozenset(devices) | _DEVICES)
    cells: dict[CellKey, SkipEntry] = {}
    unmatched: list[SkipEntry] = []
    for entry in entries:
        found = index.cells(entry)
        if not found:
            unmatched.append(entry)
        for cell in found:
            cells.setdefault(cell, entry)
    return Matched(cells, tuple(unmatched))


class _Index:
    """Finds the cells that a name is about."""

    def __init__(self, planned: Collection[CellKey], devices: frozenset[str]) -> None:
        self.by_name = {str(cell): cell for cell in planned}
        self.by_op: dict[str, list[CellKey]] = {}
        for cell in planned:
            if not cell.is_case:
                self.by_op.setdefault(_plain_name(cell.unit), []).append(cell)
        words = "|".join(sorted(map(re.escape, devices), key=len, reverse=True))
        dtypes = "|".join(sorted({*DTYPES, *_SHORT}, key=len, reverse=True))
        self.test = re.compile(
            rf"(?P<rest>test_.+?)_(?:{words})(?:_(?P<dtype>{dtypes}))?", re.IGNORECASE
        )
        self.found: dict[str, list[CellKey]] = {}

    def cells(self, entry: SkipEntry) -> list[CellKey]:
        if entry.name in self.by_name:
            return [self.by_name[entry.name]]
        if entry.name not in self.found:
            self.found[entry.name] = self._search(entry.name)
        found = self.found[entry.name]
        return [cell for cell in found if not entry.dtypes or cell.dtype in entry.dtypes]

    def _search(self, name: str) -> list[CellKey]:
        if name == "*":
            return [cell for cells in self.by_op.values() for cell in cells]
        # "test_x (__main__.TestCommon)", "test/test_ops.py::TestCommon::test_x"
        name = name.partition(" (")[0].rpartition("::")[2].strip()
        if (test := self.test.fullmatch(name)) is not None:
            return self._of_test(test["rest"], (test["dtype"] or "").lower())
        if name.startswith("test_"):
            return []
        op, _, dtype = name.partition("[")
        exact = self.by_op.get(_plain_name(op), [])
        if exact:
            return [c for c in exact if dtype.rstrip("]") in ("", c.dtype)]
        words = f"_{_plain_name(name).strip('_')}_"
        if words == "__":
            return []
        return [c for op, cells in self.by_op.items() if words in f"_{op}_" for c in cells]

    def _of_test(self, rest: str, dtype: str) -> list[CellKey]:
        """Returns the cells of the longest operator with which a test's name ends, before its device and dtype."""
        dtype = _SHORT.get(dtype, dtype)
        words = rest.split("_")
        for first in range(2, len(words)):  # "test", and at least one word about the test
            if (cells := self.by_op.get("_".join(words[first:]).lower())) is not None:
                return [cell for cell in cells if dtype in ("", cell.dtype)]
        return []


def _plain_name(op: str) -> str:
    """Returns the name of an operator as names of tests contain it."""
    return op.replace(".", "_").lower()


def unmatched_hint(entry: SkipEntry, planned: Collection[CellKey]) -> str:
    """Returns a suggestion for an entry that is about no planned cell; an empty text if there is none."""
    if entry.name.startswith("test_") or "::" in entry.name:
        return ""
    return suggestion(entry.name, {cell.unit for cell in planned if not cell.is_case})


def reason_of(entry: SkipEntry, source: str) -> str:
    """Returns the draft of a reason for the cells of an entry, without the word that marks a draft. Entries with the
    same explanation have the same reason, so that their cells share a block."""
    why = " ".join(entry.why.split())
    return f"{source} skips it{f': {why}' if why else ''}"
