"""Repro scripts of cases. A script brings the modules that its check needs along, the check's own to be
read, the others compressed: it needs torch and the device's module alone."""

from __future__ import annotations

import ast
import base64
import json
import textwrap
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.behaviour.attempts import Attempt
from conformance.behaviour.cases import Case
from devices.descriptor import Descriptor

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("conformance", "devices", "opinfo", "reports")
#: The name of a vendor's descriptor in a script.
_DESCRIBED = "described"

LOADER = '''\
import importlib.abc, importlib.util, linecache, sys


class Brought(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules that are brought along."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        package = any(other.startswith(name + ".") for other in self.sources)
        spec = importlib.util.spec_from_loader(name, self, is_package=package)
        if package:  # what is not brought along may be installed, in whatever way
            spec.submodule_search_locations = self.elsewhere(name, path)
        return spec

    def elsewhere(self, name, path):
        found = []
        for finder in sys.meta_path:
            other = None if finder is self else finder.find_spec(name, path)
            found += (other and other.submodule_search_locations) or ()
        return found

    def exec_module(self, module):
        source, file = self.sources[module.__name__], "<" + module.__name__ + ">"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        module.__file__ = file
        exec(compile(source, file, "exec"), module.__dict__)


def install(sources):
    sys.meta_path.insert(0, Brought(sources))
'''

_SCRIPT = '''\
"""{title}

{statement}
Seen: {message}
Exits 1 while that is so, 0 when it is gone, 2 where nothing could be shown. Needs torch and the
device's own module.
"""

import base64, json, sys, zlib

# The check is {function}() in this module of the suite:
CHECKED = r\'\'\'
{source}\'\'\'

# What it stands on, as it was in the suite:
CARRIED = """
{carried}
"""

LOADER = r\'\'\'
{loader}\'\'\'

CHECK = {check}

if __name__ == "__main__":
    sources = json.loads(zlib.decompress(base64.b85decode("".join(CARRIED.split()))))
    sources[CHECK["module"]] = CHECKED
    exec(LOADER)
    install(sources)
    from conformance.behaviour.replay import main

    sys.exit(main(CHECK, sources, LOADER))
'''


@dataclass(frozen=True, slots=True)
class CaseScript:
    """Writes the script of a failed case when it is called."""

    case: Case
    message: str
    device: str
    module: str
    function: str
    arguments: str
    descriptor: Path

    @classmethod
    def of(cls, case: Case, descriptor: Descriptor, attempt: Attempt) -> CaseScript | None:
        """The writer; None where a descriptor's source lies nowhere."""
        check, arguments = attempt.replay or (case.check, case.arguments)
        file = descriptor.folder / "descriptor.py" if descriptor.folder is not None else None
        if file is None or not file.is_file():
            return None
        return cls(
            case,
            attempt.failed,
            descriptor.name,
            check.__module__,
            check.__name__,
            repr(arguments),
            file,
        )

    def __call__(self) -> str:
        names = [self.module, "conformance.behaviour.replay"]
        described = _module_of(self.descriptor)
        sources = dict(carried((*names, described) if described else names))
        if not described:  # a vendor's: what it imports of the vendor's is the device's module
            text = self.descriptor.read_text(encoding="utf-8")
            described = _DESCRIBED
            sources |= carried(_imported(text))
            sources[described] = text
        own = sources.pop(self.module)
        packed = zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)
        check = {
            "module": self.module,
            "function": self.function,
            "arguments": self.arguments,
            "seed": f"{self.case.clause}::{self.case.name}",
            "descriptor": described,
            "own_process": "yes" if self.case.own_process else "",
            "environment": repr(dict(self.case.environment)),
            "seconds": str(self.case.seconds),
        }
        return _SCRIPT.format(
            title=f"{self.case.clause}::{self.case.name} on {self.device}",
            statement=_quiet(self.case.statement),
            message=_quiet(self.message),
            function=self.function,
            source=own,
            carried="\n".join(textwrap.wrap(base64.b85encode(packed).decode(), 100)),
            loader=LOADER,
            check=json.dumps(check, indent=4),
        )


def _quiet(text: str) -> str:
    """Text that can stand in a docstring."""
    plain = text.replace("\\", "/").replace('"""', "'''")
    return "\n".join(textwrap.wrap(plain, 100)) or "."


def _module_of(file: Path) -> str:
    """The name of a module of ours; empty for another's file."""
    try:
        return ".".join(file.resolve().relative_to(_ROOT).with_suffix("").parts)
    except ValueError:
        return ""


def carried(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """These modules of ours and all of ours that they import, with their sources. A package of which
    nothing but modules is imported is empty: what it gathers is of no use here."""
    waiting, seen = list(names), set()
    packages: set[str] = set()
    while waiting:
        name = waiting.pop()
        text = source_of(name) if name.partition(".")[0] in _PACKAGES else None
        if text is None or name in seen:
            continue
        seen.add(name)
        yield name, text
        waiting += _imported(text)
        while name := name.rpartition(".")[0]:
            packages.add(name)
    yield from ((package, "") for package in sorted(packages - seen))


@cache
def source_of(name: str) -> str | None:
    """The source of a module of ours, None where there is none of this name."""
    path = _ROOT.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def _imported(text: str) -> list[str]:
    """What a module imports, anywhere but for type checkers: modules, and packages of which it takes
    more than modules."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append(inner if source_of(inner) is not None else node.module)
    return found
