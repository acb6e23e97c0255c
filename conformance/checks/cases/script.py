"""Writes repro scripts of cases.

A script starts with the failed check and with the definitions that the check uses from its own module, copied from the
suite. The call that makes the check follows. All other modules of the suite that the script needs (for example the
context and the descriptor) are packed at the end, so that the script needs only torch and the device's module.
"""

from __future__ import annotations

import ast
import base64
import pprint
import re
import sys
import textwrap
import zlib
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import SERVED
from conformance.checks.failure_lines import expected_and_found, in_docstring
from conformance.checks.source import bound, names_of, text_of
from devices.descriptor import Descriptor
from devices.failure import Failure
from devices.files import tomllib

_ROOT = Path(__file__).resolve().parents[3]
_TABLE = re.compile(
    r'read_toml\(Path\(__file__\)\.with_name\("(?P<file>[^"]+)"\), (?P<kind>\w+), \w+\)'
)
#: Matches the imports of a module. Parsing every module that a script contains would take ten times as long.
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) )?import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
_FOR_TYPES = re.compile(r"^([ \t]*)if (?:\w+\.)?TYPE_CHECKING:\n(?:\1[ \t]+.*\n|\n)+", re.MULTILINE)
_PACKAGES = ("conformance", "devices", "opinfo", "reports")
#: The name of a vendor's descriptor module in a script.
_DESCRIBED = "described"

#: Code at the end of a script that imports the packed modules.
_LOADER = '''
import dataclasses, importlib.abc, importlib.util, linecache, sys, types


class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules that the script carries."""

    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        package = any(other.startswith(name + ".") for other in SOURCES)
        spec = importlib.util.spec_from_loader(name, self, is_package=package)
        if package:  # modules that are not packed may be installed
            spec.submodule_search_locations = self.elsewhere(name, path)
        return spec

    def elsewhere(self, name, path):
        found = []
        for finder in sys.meta_path:
            other = None if finder is self else finder.find_spec(name, path)
            found += (other and other.submodule_search_locations) or ()
        return found

    def exec_module(self, module):
        source, file = SOURCES[module.__name__], "<" + module.__name__ + ">"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        module.__file__ = file
        exec(compile(source, file, "exec"), module.__dict__)


class Struct:
    """Replaces msgspec.Struct. A script uses only the fields."""

    def __init_subclass__(cls, frozen=False, kw_only=False, **options):
        dataclasses.dataclass(frozen=frozen, kw_only=kw_only)(cls)


def convert(data, form):
    """Replaces msgspec.convert. The data was checked when the script was written."""
    if Struct not in getattr(form, "__mro__", ()):
        return data
    sets = [name for name, kind in form.__annotations__.items() if "frozenset" in kind]
    return form(**data | {name: frozenset(data[name]) for name in sets})


sys.meta_path.insert(0, Carried())
standing_in = {"Struct": Struct, "convert": convert}
standing_in |= {"Meta": lambda **limits: None, "ValidationError": ValueError}
for name in ("msgspec", "tomli"):  # a script reads no TOML
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(standing_in)
'''

_SCRIPT = '''\
"""{title}

{statement}

{seen}

{exits}
Needs torch and the device's own module.
"""

from __future__ import annotations


{check}


# Below: what the check uses. The modules of the suite are packed at the end of this file.

import base64, os, sys, zlib

with open(__file__, encoding="utf-8") as script:
    packed = script.read().rpartition("\\n# PACKED\\n")[2].replace("\\n", "").replace("# ", "")
exec(zlib.decompress(base64.b85decode(packed)), {{}})

{imports}


{source}


if __name__ == "__main__":
    from conformance.checks.cases.execution import reproduce
    from conformance.checks.cases.cases import BehaviourCase
    from conformance.checks.cases.processes import DeviceLocator
    from devices.failure import Kind

    CASE = BehaviourCase({arguments})
    WHERE = DeviceLocator(module={described!r}, script=os.path.abspath(__file__))
    sys.exit(reproduce(CASE, WHERE{dies}))

# PACKED
{packed}
'''

_FAILS = "Exits 1 while the failure is there, 0 when it is gone, 2 if nothing could be judged."
_DIES = (
    "The check runs in a subprocess. Exits 1 and prints the reason if the subprocess dies or the check "
    "fails, 0 if the check passes, 2 if nothing could be judged."
)


def has_source(descriptor: Descriptor) -> bool:
    """Returns True if the device's descriptor is in a file. A script then contains the text of that file."""
    return descriptor.folder is not None and (descriptor.folder / "descriptor.py").is_file()


def script_of_case(
    case: BehaviourCase,
    descriptor: Descriptor,
    failure: Failure | None = None,
    program: tuple[Any, ...] | None = None,
    *,
    dies: bool = False,
) -> str:
    """Returns the repro script of a case on a device for which ``has_source`` is true. No run is needed.

    ``failure`` is shown in its first lines, and ``program`` is the drawn program that failed, if known. If the check ``dies``,
    it crashes or hangs its process, so the script runs it in a subprocess.
    """
    assert descriptor.folder is not None
    file = descriptor.folder / "descriptor.py"
    if case.drawn is not None and program is not None:
        name = "program"
        arguments: tuple[Any, ...] = ()
        lines = case.drawn.source(descriptor, *program)
        imports, source, _ = shown(case.drawn.replay.__module__, _names_in(ast.parse(lines)))
        check = lines.strip()
    else:
        name, arguments = case.check.__name__, case.arguments
        helpers = [
            each for each in arguments if isinstance(each, str)
        ]  # helper functions that an argument names
        imports, source, check = shown(case.check.__module__, [name, *helpers], name)
    roots = [*_imported(imports), "conformance.checks.cases.execution", SERVED]
    described = _module_of(file)
    if described:
        sources = dict(carried((*roots, described)))
    else:  # a vendor's file, which imports the device's module by itself
        described, theirs = _DESCRIBED, file.read_text(encoding="utf-8")
        sources = dict(carried((*roots, *_imported(theirs)))) | {_DESCRIBED: theirs}
    packed = zlib.compress(f"SOURCES = {sources!r}\n{_LOADER}".encode(), 9)
    text = base64.b85encode(packed).decode()
    rows = [text[start : start + 118] for start in range(0, len(text), 118)]
    return _SCRIPT.format(
        title=f"{case.id} on {descriptor.name}",
        statement=_quiet(case.statement),
        seen=_seen(failure),
        exits=_quiet(_DIES if dies else _FAILS),
        imports=imports,
        check=check,
        source=source,
        arguments=_written(case, name, arguments),
        described=described,
        dies=", dies=True" if dies else "",
        packed="\n".join(f"# {line}" for line in rows),
    )


def _seen(failure: Failure | None) -> str:
    if failure is None:
        return "Found:    the check did not finish"
    return "\n".join(map(in_docstring, expected_and_found(failure)))


def _written(case: BehaviourCase, name: str, arguments: tuple[Any, ...]) -> str:
    """Returns the source of the arguments from which the script builds its BehaviourCase: only those on which the result
    depends."""
    given = [repr(case.clause), repr(case.name), name]
    if arguments:
        given.append(pprint.pformat(arguments, width=90, compact=True))
    given.append(f"kind=Kind.{case.kind.name}")
    plain = BehaviourCase(case.clause, case.name, case.check)
    for field in ("own_process", "environment", "seconds"):
        if (value := getattr(case, field)) != getattr(plain, field):
            given.append(f"{field}={value!r}")
    return ", ".join(given)


def _quiet(text: str) -> str:
    """Replaces the characters of a text that would break a docstring, and wraps the lines."""
    plain = text.replace("\\", "/").replace('"""', "'''")
    return "\n".join(part for line in plain.split("\n") for part in textwrap.wrap(line, 100)) or "."


# -- the part of a module that a check uses


def shown(module: str, roots: Iterable[str], first: str = "") -> tuple[str, str, str]:
    """Returns the imports and the source code of a module that the names in ``roots`` need: their definitions and,
    recursively, those of every name of the module that they use. The definition of the function ``first`` is returned
    apart from the others; it may stand before them."""
    text = _source_of(module)
    assert text is not None
    lines, tree = text.splitlines(), ast.parse(text)
    defined = {name: node for node in tree.body for name in names_of(node)}
    waiting, names = list(roots), set[str]()
    while waiting:
        name = waiting.pop()
        if name in names or name not in defined:
            continue
        names.add(name)
        node = defined[name]
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            waiting += _names_in(_plain(node))
            waiting += [  # helpers whose names are passed as strings
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
    imports: list[str] = []
    source, leading, short = "", "", False  # short: the last part is an assignment
    for node in tree.body:
        if not any(name in names and defined[name] is node for name in names_of(node)):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [each for each in node.names if bound(each) in names]
            imports.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and node.name == first and _may_lead(node):
            leading = text_of(_plain(node), lines)
        else:
            assigns = not isinstance(node, (ast.FunctionDef, ast.ClassDef))
            gap = "" if not source else "\n" if assigns and short else "\n\n\n"
            source += gap + text_of(_plain(node), lines)
            short = assigns
    return "\n".join(imports), source, leading


def _may_lead(node: ast.FunctionDef) -> bool:
    """Returns True if a function may be defined before all others: nothing is evaluated when it is defined."""
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return not _plain(node).decorator_list and not any(map(_names_in, defaults))  # type: ignore[attr-defined]


def _names_in(tree: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(tree) if isinstance(each, ast.Name)]


def _plain(node: ast.stmt) -> ast.stmt:
    """Returns a function definition without its ``@cases(...)`` decorators."""
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = [
            each for each in node.decorator_list if not ast.unparse(each).startswith("cases(")
        ]
    return node


# -- the modules that a script needs


def _module_of(file: Path) -> str:
    """Returns the module name of a file of this project; empty for any other file."""
    try:
        return ".".join(file.resolve().relative_to(_ROOT).with_suffix("").parts)
    except ValueError:
        return ""


def carried(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, source) of the named modules and of all modules of this project that they import. A package from
    which only modules are imported has an empty source."""
    waiting, seen = list(names), set()
    packages: set[str] = set()
    while waiting:
        name = waiting.pop()
        text = _source_of(name) if name.partition(".")[0] in _PACKAGES else None
        if text is None or name in seen:
            continue
        seen.add(name)
        yield name, _TABLE.sub(partial(_written_out, name), text)
        waiting += _imported(text)
        while name := name.rpartition(".")[0]:
            packages.add(name)
    yield from ((package, "") for package in sorted(packages - seen))


def _written_out(module: str, found: re.Match[str]) -> str:
    """Returns source code with the content of a TOML file that stands next to the module. The code replaces the call
    that reads the file, because a script cannot read other files."""
    path = _ROOT.joinpath(*module.split(".")).with_name(found["file"])
    return f"msgspec.convert({tomllib.loads(path.read_text(encoding='utf-8'))!r}, {found['kind']})"


@cache
def _source_of(name: str) -> str | None:
    """Returns the source of any module of this project, or of another module that has been imported; None for any other
    name."""
    path = _ROOT.joinpath(*name.split("."))
    files = [path.with_suffix(".py"), path / "__init__.py"]
    if name in sys.modules and (file := getattr(sys.modules[name], "__file__", None)):
        files.append(Path(file))
    for file in files:
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


@cache
def _imported(text: str) -> tuple[str, ...]:
    """Returns the names of the modules that the source code of a module imports outside of ``if TYPE_CHECKING:``. A
    package is included if names other than modules are imported from it."""
    found: list[str] = []
    for source, several, one in _IMPORT.findall(_FOR_TYPES.sub("", text)):
        for name in re.findall(r"(?:^|,)\s*([\w.*]+)", re.sub(r"#.*", "", several or one)):
            inner = f"{source}.{name}" if source else name
            found.append(inner if not source or _source_of(inner) is not None else source)
    return tuple(found)
