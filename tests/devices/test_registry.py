"""Finding descriptors: built-in folders, entry points, files."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from devices import registry
from devices.descriptor import Descriptor, DescriptorError
from devices.registry import GROUP, UnknownDevice, discover, load_file

GOOD = """
from devices.descriptor import Descriptor
DESCRIPTOR = Descriptor(
    name="{name}", torch_type="{torch_type}", title="A device", capabilities=frozenset(),
    dtypes=frozenset({{"float32"}}), unavailable=lambda: {unavailable!r}, default={default},
)
"""


def write(
    folder: Path,
    name: str,
    text: str | None = None,
    *,
    torch_type: str = "",
    why: str | None = None,
    default: bool = False,
) -> Path:
    """A device's folder with its descriptor.py."""
    home = folder / name
    home.mkdir(parents=True)
    source = text or GOOD.format(
        name=name, torch_type=torch_type or name, unavailable=why, default=default
    )
    (home / "descriptor.py").write_text(textwrap.dedent(source))
    return home


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path, for modules that entry points name."""
    before = set(sys.modules)
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_the_cpu_is_built_in() -> None:
    cpu = registry.get("cpu")
    assert cpu.folder == Path(registry.__file__).resolve().parent / "cpu"
    assert cpu.expectations == cpu.folder / "expected.toml"
    assert registry.installed().devices["cpu"] is cpu


def test_every_built_in_device_loads() -> None:
    found = discover(entry_points=())
    folders = Path(registry.__file__).parent.glob("*/descriptor.py")
    assert not found.broken
    assert set(found.devices) == {path.parent.name for path in folders}


def test_an_unknown_device_is_answered_with_near_and_known_names(tmp_path: Path) -> None:
    for name in ("cpu", "simulated"):
        write(tmp_path, name)
    with pytest.raises(UnknownDevice) as caught:
        discover(tmp_path, ()).get("simulatd")
    assert str(caught.value) == (
        "there is no device 'simulatd'; did you mean 'simulated'? (known: 'cpu', 'simulated');"
        " for your own descriptor give --descriptor PATH"
    )


def test_a_folder_without_a_descriptor_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    assert not discover(tmp_path, ()).devices


def test_a_device_without_a_manifest_has_no_expectations(tmp_path: Path) -> None:
    home = write(tmp_path, "npu")
    found = discover(tmp_path, ()).get("npu")
    assert (found.folder, found.expectations) == (home, None)


BROKEN = [
    ("raise OSError('no driver')", "loading the descriptor raised OSError: no driver"),
    ("import sys; sys.exit(3)", "loading the descriptor raised SystemExit: 3"),
    ("DESCRIPTOR = (", "line 1: not valid Python: '(' was never closed"),
    ("x = 1", "there is no DESCRIPTOR: add DESCRIPTOR = Descriptor(...)"),
    ("DESCRIPTOR = 3", "DESCRIPTOR must be a Descriptor, got 3"),
    (
        GOOD.format(name="other", torch_type="x", unavailable=None, default=False),
        "give both the same name",
    ),
    (
        GOOD.format(name="npu", torch_type="x:0", unavailable=None, default=False),
        "descriptor.py: device 'npu': torch_type must be a device type without an index",
    ),
]


@pytest.mark.parametrize(("text", "cause"), BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_a_broken_folder_names_file_and_cause_and_hides_no_other(
    tmp_path: Path, text: str, cause: str
) -> None:
    home = write(tmp_path, "npu", text)
    write(tmp_path, "cpu")
    found = discover(tmp_path, ())
    assert list(found.devices) == ["cpu"]
    with pytest.raises(DescriptorError) as caught:
        found.get("npu")
    assert str(home / "descriptor.py") in str(caught.value)
    assert cause in str(caught.value)


def test_an_entry_point_gives_a_descriptor_by_attribute(tmp_path: Path, packages: Path) -> None:
    home = write(packages, "vendor_a")
    (home / "expected.toml").write_text("")
    found = discover(tmp_path / "none", [entry("vendor_a", "vendor_a.descriptor:DESCRIPTOR")])
    device = found.get("vendor_a")
    assert (device.folder, device.expectations) == (home, home / "expected.toml")


def test_an_entry_point_gives_a_module_that_holds_one(tmp_path: Path, packages: Path) -> None:
    home = write(packages, "vendor_b")
    found = discover(tmp_path / "none", [entry("any", "vendor_b.descriptor")])
    assert found.get("vendor_b").folder == home


def test_a_device_is_known_by_its_own_name_not_its_entry_point_s(
    tmp_path: Path, packages: Path
) -> None:
    write(packages, "vendor_c")
    found = discover(tmp_path / "none", [entry("alias", "vendor_c.descriptor")])
    assert list(found.devices) == ["vendor_c"]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (
            "absent_module",
            "loading the descriptor raised ModuleNotFoundError: No module named 'absent_module'",
        ),
        ("textwrap:absent", "loading the descriptor raised AttributeError"),
        ("textwrap:dedent", "expected a Descriptor, or a module that has one as DESCRIPTOR"),
        ("textwrap", "there is no DESCRIPTOR: add DESCRIPTOR = Descriptor(...)"),
    ],
)
def test_a_broken_entry_point_names_itself_and_cause_and_hides_no_other(
    tmp_path: Path, packages: Path, value: str, cause: str
) -> None:
    write(tmp_path, "cpu")
    write(packages, "vendor_d")
    found = discover(tmp_path, [entry("bad", value), entry("good", "vendor_d.descriptor")])
    assert list(found.devices) == ["cpu", "vendor_d"]
    with pytest.raises(DescriptorError) as caught:
        found.get("bad")
    assert str(caught.value).startswith(f"entry point 'bad' ({value})")
    assert cause in str(caught.value)


def test_an_entry_point_cannot_take_a_built_in_name(tmp_path: Path, packages: Path) -> None:
    home = write(tmp_path, "cpu")
    write(
        packages,
        "vendor_e",
        GOOD.format(name="cpu", torch_type="cpu", unavailable=None, default=False),
    )
    found = discover(tmp_path, [entry("mine", "vendor_e.descriptor")])
    assert found.get("cpu").folder == home
    assert str(found.broken["mine"]) == (
        "entry point 'mine' (vendor_e.descriptor) provides a device named 'cpu', which already exists"
        f" in {home}: rename the device, or use it with --descriptor PATH"
    )


@pytest.mark.parametrize("form", ["", "descriptor.py"])
def test_a_path_is_a_descriptor_s_file_or_its_folder(tmp_path: Path, form: str) -> None:
    home = write(tmp_path, "mine")
    (home / "expected.toml").write_text("")
    device = load_file(home / form)
    assert (device.name, device.folder) == ("mine", home)
    assert device.expectations == home / "expected.toml"


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write(tmp_path, "mine")
    monkeypatch.chdir(tmp_path)
    assert load_file(Path("mine")).folder == home


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "one")
    second = write(tmp_path / "b", "two")
    assert [load_file(first).name, load_file(second).name] == ["one", "two"]


def test_a_descriptor_s_own_manifest_is_kept(tmp_path: Path) -> None:
    source = GOOD.format(name="mine", torch_type="x", unavailable=None, default=False).replace(
        "title=", "expectations=Path('/else/where.toml'), title="
    )
    home = write(tmp_path, "mine", "from pathlib import Path\n" + source)
    assert load_file(home).expectations == Path("/else/where.toml")


@pytest.mark.parametrize("name", ["absent.py", "absent"])
def test_a_path_that_is_not_there_says_what_to_give(tmp_path: Path, name: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        load_file(tmp_path / name)
    assert str(caught.value) == (
        f"{tmp_path / name}: no such file: give a descriptor.py, or a folder with one"
    )


def test_a_folder_without_a_descriptor_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DescriptorError, match=r"descriptor\.py: no such file: give a"):
        load_file(tmp_path)


def test_a_file_that_is_not_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "descriptor.toml").write_text("")
    with pytest.raises(DescriptorError, match=r"not a Python file: its name must end in \.py"):
        load_file(tmp_path / "descriptor.toml")


def _default(tmp_path: Path, accelerator: str | None, **devices: tuple[str, str | None]) -> str:
    for name, (torch_type, why) in devices.items():
        write(tmp_path, name, torch_type=torch_type, why=why, default=torch_type == "everywhere")
    chosen: Descriptor = discover(tmp_path, ()).default(accelerator)
    return chosen.name


CPU = ("cpu", None)
EVERYWHERE = ("everywhere", None)


def test_the_default_is_the_machine_s_accelerator(tmp_path: Path) -> None:
    assert _default(tmp_path, "xpu", cpu=CPU, own=EVERYWHERE, xpu=("xpu", None)) == "xpu"


def test_without_an_accelerator_the_default_is_the_one_that_declares_it(tmp_path: Path) -> None:
    assert _default(tmp_path, None, cpu=CPU, own=EVERYWHERE, xpu=("xpu", None)) == "own"


def test_the_cpu_is_no_accelerator(tmp_path: Path) -> None:
    assert _default(tmp_path, "cpu", cpu=CPU, own=EVERYWHERE) == "own"


def test_without_a_descriptor_for_the_accelerator_the_default_is_the_one_that_declares_it(
    tmp_path: Path,
) -> None:
    assert _default(tmp_path, "vulkan", cpu=CPU, own=EVERYWHERE) == "own"


def test_where_none_declares_it_the_default_is_the_cpu(tmp_path: Path) -> None:
    assert _default(tmp_path, None, host=CPU, xpu=("xpu", None)) == "host"


def test_of_two_descriptors_for_one_type_the_usable_one_is_the_default(tmp_path: Path) -> None:
    cuda, rocm = ("cuda", "torch is built for ROCm"), ("cuda", None)
    assert _default(tmp_path, "cuda", cpu=CPU, cuda=cuda, rocm=rocm) == "rocm"


def test_a_descriptor_s_name_is_no_reason_to_prefer_it(tmp_path: Path) -> None:
    named_as_the_type = ("else", None)
    assert (
        _default(tmp_path, "cuda", cpu=CPU, cuda=named_as_the_type, mine=("cuda", None)) == "mine"
    )
    usable = ("cuda", None)
    assert _default(tmp_path / "two", "cuda", cpu=CPU, blue=usable, cuda=usable) == "blue"


def test_an_accelerator_that_cannot_be_used_is_still_the_default(tmp_path: Path) -> None:
    assert _default(tmp_path, "xpu", own=EVERYWHERE, xpu=("xpu", "driver too old")) == "xpu"


def test_the_default_device_asks_what_is_installed() -> None:
    expected = "simulated" if "simulated" in registry.installed().devices else "cpu"
    assert registry.installed().default(None).name == expected
