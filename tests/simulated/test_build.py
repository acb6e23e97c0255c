"""Building the simulated device: once, under a lock of its own, and with one clear message where it cannot be."""

from __future__ import annotations

import io
import re
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from devices.simulated import build_tools
from devices.simulated.backend import build


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build_tools.sysconfig, "get_path", lambda name: str(tmp_path))


def test_nothing_is_missing_where_the_device_was_built() -> None:
    assert build_tools.missing_tools() is None


def test_missing_tools_are_named_with_how_to_get_them(no_tools: None) -> None:
    said = build_tools.missing_tools()
    assert said is not None and "\n" not in said
    for part in ("C++20 compiler ('c++' is not on PATH)", "ninja", "apt install", "--device cpu"):
        assert part in said


def test_a_compiler_of_the_user_s_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    said = build_tools.missing_tools()
    assert said is not None and "'no-such-compiler -m64' is not on PATH" in said


def test_a_build_without_tools_raises_what_is_missing(no_tools: None, tmp_path: Path) -> None:
    with pytest.raises(build.BuildFailed, match="lacks a C"):
        build._build(tmp_path)


def test_a_torch_without_the_interface_of_graphs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch 2.11 has none: the compiler's error was all that one saw."""
    monkeypatch.setattr(build_tools, "torch_has_header", lambda path: False)
    said = build_tools.missing_tools()
    assert said is not None and "needs torch 2.13" in said and "--device cpu" in said


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tools.sys, "platform", "win32")
    assert build_tools.missing_tools() == (
        "the simulated device needs Linux (memfd_create), this is win32"
    )


class Said(io.StringIO):
    """Standard error, and an event for its first line."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def write(self, text: str) -> int:
        self._event.set()
        return super().write(text)


def test_two_that_build_at_once_compile_once_and_the_second_says_that_it_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiling, said, compiled = threading.Event(), threading.Event(), []
    printed = Said(said)
    monkeypatch.setattr(sys, "stderr", printed)

    def slow(folder: Path) -> ModuleType:
        compiled.append(folder)
        compiling.set()
        waiting.wait(10)
        return ModuleType("made")

    waiting = threading.Event()
    monkeypatch.setattr(build, "_compile", slow)
    built: dict[str, ModuleType | None] = {}

    def build_as(name: str) -> None:
        built[name] = build._build(tmp_path)

    first = threading.Thread(target=build_as, args=("first",))
    first.start()
    assert compiling.wait(10)
    second = threading.Thread(target=build_as, args=("second",))
    second.start()
    assert said.wait(10)  # the second one waits
    waiting.set()
    first.join(10)
    second.join(10)
    assert len(compiled) == 1
    assert "another process is building the device" in printed.getvalue()
    assert built["first"] is not None and built["second"] is None


def test_a_lock_that_torch_left_behind_is_cleared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lock").touch()
    seen: list[bool] = []

    def look(folder: Path) -> ModuleType:
        seen.append((folder / "lock").exists())
        return ModuleType("made")

    monkeypatch.setattr(build, "_compile", look)
    build._build(tmp_path)
    assert seen == [False]


def test_a_build_that_failed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(folder: Path) -> ModuleType:
        raise build.BuildFailed("no")

    monkeypatch.setattr(build, "_compile", fail)
    with pytest.raises(build.BuildFailed):
        build._build(tmp_path)
    assert not (tmp_path / "complete").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(build.BuildFailed, match=r"file/build.*TORCH_CONFORMANCE_CACHE"):
        build._build(tmp_path / "file" / "build")


def test_errors_of_the_compiler_are_shown_in_one_line(tmp_path: Path) -> None:
    output = "\n".join(["x.cpp: In function", "x.cpp:3: error: no such thing", "more"] * 9)
    said = build._short(tmp_path, output)
    assert "x.cpp:3: error: no such thing" in said and "\n" not in said
    assert (tmp_path / "build.log").read_text() == output


def test_the_key_depends_on_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._key()
    monkeypatch.setenv("SIMULATED_CXXFLAGS", "-g")
    assert build._key() != before


def test_every_source_file_is_compiled_once() -> None:
    texts = [path.read_text() for path in build.SOURCES.glob("unit_*.cpp")]
    parts = [part for text in texts for part in re.findall(r'#include "(.*\.cpp)"', text)]
    units = {path.name for path in build.SOURCES.glob("*.cpp")}.difference(parts)
    assert len(set(parts)) == len(parts) and all(name.startswith("unit_") for name in units)


def test_progress_says_what_is_going_on_and_how_long_it_took(tmp_path: Path) -> None:
    out = io.StringIO()
    with build._progress(tmp_path, 3, out):
        pass
    start, end = out.getvalue().splitlines()
    assert start.startswith("building the simulated device") and start.endswith("...")
    assert "done after 0 s" in end
