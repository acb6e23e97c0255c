"""The compiler's output for a text is taken from the cache where nothing that it depends on has changed, and only there."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conformance.checks.behaviour import compiled_libraries
from conformance.checks.behaviour.compiled_libraries import libraries_from_cache, library_key


class Builder:
    """Stands in for Inductor's builder of libraries. The library that it makes is the text of the source, in capitals."""

    compiled = 0

    def __init__(self, source: Path, options: str) -> None:
        self.source, self.options = source, options

    def get_target_file_path(self) -> str:
        return str(self.source.with_suffix(".so"))

    def get_command_line(self) -> str:
        return f"g++ {self.source} {self.options} -o {self.get_target_file_path()}"

    def build(self) -> None:
        Builder.compiled += 1
        Path(self.get_target_file_path()).write_text(self.source.read_text().upper())


Build = Callable[..., tuple[str, bool]]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Returns a function that builds a source in a new folder: the library, and whether the compiler ran."""
    found = importlib.import_module("torch._inductor.cpp_builder")
    monkeypatch.setattr(found, "CppBuilder", Builder)
    monkeypatch.setattr(Builder, "compiled", 0)
    folders = iter(range(100))

    def build(text: str, options: str = "-O3", header: str = "headers/a.h") -> tuple[str, bool]:
        source = tmp_path / str(next(folders)) / "a.cpp"
        source.parent.mkdir()
        source.write_text(text)
        builder, before = (
            Builder(source, f"{options} -include {tmp_path / header}"),
            Builder.compiled,
        )
        with libraries_from_cache(tmp_path / "libraries", tmp_path / "headers"):
            builder.build()
        return Path(builder.get_target_file_path()).read_text(), Builder.compiled > before

    return build


def test_the_same_text_is_compiled_once(build: Build) -> None:
    assert [build("int a;"), build("int a;")] == [("INT A;", True), ("INT A;", False)]


@pytest.mark.parametrize(
    "other", [{"text": "int b;"}, {"options": "-O2"}, {"header": "headers/b.h"}]
)
def test_another_text_command_or_header_is_compiled(build: Build, other: dict[str, str]) -> None:
    build("int a;")
    assert build(**{"text": "int a;", **other})[1]


@pytest.mark.parametrize(
    "name", ["_torch_build", "_processor", "_compiler_version", "_compiler_file"]
)
def test_another_torch_processor_or_compiler_is_compiled(
    build: Build, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("int a;")
    monkeypatch.setattr(compiled_libraries, name, lambda *given: "another")
    assert build("int a;")[1]


def test_another_variable_of_the_compiler_is_compiled(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("int a;")
    monkeypatch.setenv("COMPILER_PATH", "/elsewhere")
    assert build("int a;")[1]


def test_a_header_of_others_is_always_read(build: Build, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "device.h").write_text("")
    torch_headers = Path(torch.__file__).parent / "include"
    known = ("#include <ATen/core/Tensor.h>\n#include <cmath>\n", f"-I{torch_headers}")
    others = ('#include "device.h"\n', f"-I{tmp_path / 'others'}")
    absolute = (f'  #  include "{tmp_path}/others/device.h"\n', "-O3")
    for text, options, compiled in ((*known, False), (*others, True), (*absolute, True)):
        build(text, options)
        assert build(text, options)[1] is compiled, text


def test_a_static_library_is_always_linked(build: Build) -> None:
    assert [build("int a;", "kernels.a")[1] for _ in range(2)] == [True, True]


def test_a_command_without_a_header_of_the_suite_is_always_run(build: Build) -> None:
    assert [build("int a;", header="other/a.h")[1] for _ in range(2)] == [True, True]


def test_a_failure_of_the_compiler_is_not_kept(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(builder: Builder) -> None:
        raise RuntimeError("a syntax error")

    with monkeypatch.context() as patch:
        patch.setattr(Builder, "build", fail)
        with pytest.raises(RuntimeError, match="a syntax error"):
            build("int a;")
    assert not Path(tmp_path, "libraries").exists()
    assert build("int a;") == ("INT A;", True)


@pytest.mark.parametrize(
    ("driver", "program", "starts"),
    [
        ("kill -9 $$", "", 2),
        ("exit 1", "g++: fatal error: Killed signal terminated program cc1plus", 2),
        ("exit 1", "a.cpp:1: error: expected ';'", 1),
        ("kill -11 $$", "", 1),
    ],
)
def test_a_compiler_that_was_killed_is_started_once_more(
    driver: str, program: str, starts: int, tmp_path: Path
) -> None:
    """torch's own function runs a shell in place of the compiler."""
    run = importlib.import_module("torch._inductor.cpp_builder").run_compile_cmd
    started = tmp_path / "started"
    script = tmp_path / "compiler.sh"
    script.write_text(f"echo >> {started}\necho '{program.replace(chr(39), '')}'\n{driver}\n")
    with pytest.raises(RuntimeError, match="C\\+\\+ compile error"):
        compiled_libraries._compile(lambda: run(f"sh {script}", str(tmp_path)))
    assert started.read_text().count("\n") == starts


def test_the_key_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    keys = set()
    for folder in ("a", "b"):
        source = tmp_path / folder / "a.cpp"
        source.parent.mkdir()
        source.write_text("int a;")
        builder = Builder(source, f"-include {tmp_path / 'headers' / 'a.h'}")
        keys.add(library_key(builder, source.with_suffix(".so"), tmp_path / "headers"))
    assert len(keys) == 1 and None not in keys


def test_libraries_that_nobody_uses_are_deleted(tmp_path: Path, build: Build) -> None:
    build("int a;")
    [library] = Path(tmp_path, "libraries").iterdir()
    os.utime(library, (0, 0))
    compiled_libraries._delete_unused.cache_clear()
    assert build("int b;")[1]
    assert not library.exists()


def test_the_builder_is_as_before_after_the_block(tmp_path: Path) -> None:
    found = importlib.import_module("torch._inductor.cpp_builder").CppBuilder
    before = found.build
    with libraries_from_cache(tmp_path, tmp_path):
        assert found.build is not before
    assert found.build is before
