"""Arrows run one way, private names stay in their adapters, torch stays out where it is not needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture import (
    CHECKOUT,
    PACKAGES,
    ROOMS,
    Module,
    cycles,
    imported,
    loads,
    modules,
    name_of,
    picture,
    room_graph,
    sources,
    tree,
)

#: The packages of ours that each may import, beside itself.
MAY_IMPORT = {
    "conformance": {"devices", "opinfo", "reports"},
    "devices": set(),
    "opinfo": {"devices"},
    "reports": {"devices"},
}
#: What needs no torch (``devices`` and ``reports`` are held to it as wholes).
TORCH_FREE = (
    "conformance",
    "conformance.contract",
    "conformance.cli",
    "conformance.plan.options",
)
#: The modules that may use what is private in somebody else's package: one for each package.
ADAPTERS = {
    "_pytest": frozenset({"conformance.run.pytest_adapter"}),
    "xdist": frozenset({"conformance.run.xdist_adapter"}),
    "execnet": frozenset({"conformance.run.execnet_adapter"}),
    "torch.testing._internal": frozenset({"opinfo.catalog", "opinfo.module_catalog"}),
}


def tracked() -> list[Path]:
    """The files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (CHECKOUT / name.decode() for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_those_below_it_alone(package: str) -> None:
    forbidden = ({*PACKAGES, "tests", "benchmarks"} - {package}) - MAY_IMPORT[package]
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {name}"
        for path in sources(package)
        for name in imported(path)
        if name.partition(".")[0] in forbidden
    ]
    assert wrong == []


def test_a_room_imports_those_below_it_alone() -> None:
    place = {room: number for number, room in enumerate(ROOMS)}
    wrong = [
        f"{module.name} imports {name}"
        for module in modules().values()
        if module.room in place
        for name in sorted(module.imports)
        if place.get(_room(name), len(ROOMS)) < place[module.room]
    ]
    assert wrong == []


def _room(name: str) -> str:
    return modules()[name].room


def _suite(name: str) -> str:
    """The suite of a module, such as ``graphs``; empty for modules of no suite."""
    parts = name.split(".")
    return parts[2] if name.startswith("conformance.suites.") else ""


def test_no_suite_imports_another() -> None:
    """What suites share is in ``conformance/checks/``."""
    wrong = [
        f"{module.name} imports {name}"
        for module in modules().values()
        for name in sorted(module.imports)
        if _suite(module.name) and _suite(name) not in ("", _suite(module.name))
    ]
    assert wrong == []


def test_the_contract_does_not_load_the_simulated_device() -> None:
    """A clause names its planted faults as data; tests compare the names with those of the device."""
    wrong = [
        f"{module.name} loads {name}"
        for module in modules().values()
        if module.room == "contract"
        for name in sorted(loads()[module.name])
        if f"{name}.".startswith("devices.simulated.")
    ]
    assert wrong == []


def test_only_the_database_source_asks_torchs_database_of_ops() -> None:
    """Planner, workers and checks ask a source of samples, which need not be the database."""
    asking = [
        module.name
        for module in modules().values()
        if re.search(r"\bcatalogue\b\(", module.path.read_text(encoding="utf-8"))
    ]
    assert sorted(asking) == ["opinfo.catalog", "opinfo.database"]


def test_every_module_of_conformance_is_in_a_room() -> None:
    rooms = {module.room for module in modules().values() if module.name.startswith("conformance.")}
    assert rooms <= {*ROOMS}


def test_no_modules_import_each_other() -> None:
    assert cycles({name: module.imports for name, module in modules().items()}) == []


def test_no_modules_of_the_simulated_device_load_each_other() -> None:
    """Modules that are loaded late, by their names, count too."""
    graph = {name: loads()[name] for name in modules() if name.startswith("devices.simulated")}
    assert "devices.simulated.backend" in graph["devices.simulated.descriptor"]
    assert cycles(graph) == []


def test_no_rooms_import_each_other() -> None:
    assert cycles(room_graph()) == []


def test_the_picture_of_the_architecture_is_true() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(r"```mermaid\n(.*?)```", page, re.DOTALL)
    assert drawn is not None
    assert drawn.group(1) == picture(), "python -m tests.architecture prints the picture"


#: A device that is made here, not only described: it is imported when the device is used.
BACKEND = CHECKOUT / "devices" / "simulated" / "backend"


@pytest.mark.parametrize("package", ["devices", "reports"])
def test_devices_and_reports_never_import_torch(package: str) -> None:
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {name}"
        for path in sources(package)
        if BACKEND not in path.parents
        for name in imported(path)
        if name.partition(".")[0] in ("torch", "numpy", "pytest")
    ]
    assert wrong == []


# -- private names


def private_uses(module: Module) -> Iterator[tuple[str, str]]:
    """The packages of ADAPTERS that a module imports, or names in a string, with the line."""
    for node in ast.walk(tree(module.path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = (
                [node.value] if re.fullmatch(r"[\w.]+", node.value) and "." in node.value else []
            )
            names += re.findall(r"^\s*(?:from|import) ([\w.]+)", node.value, re.MULTILINE)
        for name in names:
            for package in ADAPTERS:
                if f"{name}.".startswith(f"{package}."):
                    yield package, f"{module.path.relative_to(CHECKOUT)}:{node.lineno}: {name}"


def test_private_names_of_other_packages_stay_in_their_adapters() -> None:
    wrong = [
        where
        for module in modules().values()
        for package, where in private_uses(module)
        if module.name not in ADAPTERS[package]
    ]
    assert wrong == []


def test_pytest_is_for_the_plugin_and_its_adapters_alone() -> None:
    importers = {
        module.name
        for module in modules().values()
        if any(name.partition(".")[0] == "pytest" for name in imported(module.path))
    }
    plugins = {"conformance.plugin", "conformance.cli", "conformance.plan.options"}
    assert importers <= plugins | ADAPTERS["_pytest"] | ADAPTERS["xdist"]


# -- facts are fields: no text of ours is read back

#: Attributes that hold a text for people, made from fields.
TEXTS = frozenset({"message", "detail", "why", "note", "notes"})
READERS = frozenset(
    [
        "match",
        "search",
        "fullmatch",
        "findall",
        "finditer",
        "partition",
        "rpartition",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "find",
        "rfind",
        "index",
        "split",
        "rsplit",
    ]
)


def texts_read_back(path: Path) -> Iterator[str]:
    """Where a module looks for something in a text that was made for people."""

    def is_text(node: ast.AST) -> bool:
        return any(
            isinstance(n, ast.Attribute)
            and n.attr in TEXTS
            and not (isinstance(n.value, ast.Name) and n.value.id == "self")
            for n in ast.walk(node)
        )

    for node in ast.walk(tree(path)):
        found = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Joining lines, or showing the first one, is layout.
            layout = not node.args or (
                isinstance(node.args[0], ast.Constant) and node.args[0].value == "\n"
            )
            if node.func.attr in READERS and not layout:
                found = is_text(node.func.value) or any(is_text(a) for a in node.args)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            found = any(
                isinstance(c, ast.Attribute) and c.attr in TEXTS - {"notes"}
                for c in node.comparators
            )
        if found:
            yield f"{path.relative_to(CHECKOUT)}:{node.lineno}: {ast.unparse(node)[:90]}"


def test_no_fact_is_read_out_of_a_message() -> None:
    assert [w for package in PACKAGES for p in sources(package) for w in texts_read_back(p)] == []


def test_reading_a_fact_out_of_a_message_is_noticed(tmp_path: Path) -> None:
    code = (
        "import re\n"
        "a = re.search('raised (.*)', result.message)\n"
        "b = failure.detail.startswith('raised')\n"
        "c = 'raised' in cell.message\n"
        "d = result.kind == 'raised'\n"
    )
    path = CHECKOUT / "tests" / f".{tmp_path.name}.py"
    path.write_text(code)
    try:
        assert len(list(texts_read_back(path))) == 3
    finally:
        path.unlink()


# -- no policy hangs on a name


def names_compared(path: Path) -> Iterator[str]:
    """Where a device's or an op's name is compared with a text in the source."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        named = any(
            isinstance(side, ast.Attribute)
            and side.attr in ("name", "op", "id")
            and re.search(r"device|descriptor|\bop\b|subject", ast.unparse(side.value))
            for side in sides
        )
        literal = any(
            isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value
            for side in sides
            for n in ast.walk(side)
        )
        if named and literal:
            yield f"{path.relative_to(CHECKOUT)}:{node.lineno}: {ast.unparse(node)[:90]}"


def test_no_policy_hangs_on_a_name() -> None:
    assert [w for package in PACKAGES for p in sources(package) for w in names_compared(p)] == []


# -- every file


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(CHECKOUT).as_posix()
        for folder in (*PACKAGES, "tests")
        for path in sources(folder)
        if (text := path.read_text(encoding="utf-8")).strip()
        and ast.get_docstring(ast.parse(text)) is None
    ]
    assert silent == []


def test_no_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    here = str(CHECKOUT)
    places = re.compile(rf"{re.escape(here)}(?![\w-])|/home/\w+/|/Users/\w+/|/root/")
    named = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()[:80]}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if places.search(line)
    ]
    assert named == []


# -- what importing costs


def after(code: str) -> set[str]:
    """The names in ``sys.modules`` of a fresh interpreter that ran ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_needs_no_torch_leaves_it_out(name: str) -> None:
    assert not after(f"import {name}") & {"torch", "numpy"}


def test_importing_every_module_of_reports_leaves_torch_out() -> None:
    names = [name_of(path) for path in sources("reports")]
    assert "reports.gate" in names
    code = "\n".join(f"import {name}" for name in names)
    assert not after(code) & {"torch", "numpy", "opinfo", "conformance", "pytest"}


def test_importing_every_descriptor_leaves_torch_out() -> None:
    names = [name_of(path) for path in sources("devices") if path.stem == "descriptor"]
    assert "devices.cuda.descriptor" in names
    code = "\n".join(f"import {name}" for name in names)
    assert not after(code) & {"torch", "numpy", "opinfo", "conformance", "reports", "pytest"}


def test_the_modules_of_opinfo_that_are_pure_leave_torch_out() -> None:
    code = "import opinfo.layouts, opinfo.plan, opinfo.exceptions"
    assert not after(code) & {"torch", "numpy"}


def test_pre_commit_lints_with_the_pinned_version() -> None:
    hooks = (CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    used = set(re.findall(r"\[(ruff==[\d.]+)\]", hooks))
    assert used and used <= set(pinned)
