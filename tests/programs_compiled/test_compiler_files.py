"""The files of the compiler are where the suite puts them, and the process is as before."""

from __future__ import annotations

import importlib
import os
import pkgutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.behaviour import compiler
from conformance.checks.scratch import VARIABLE, delete_scratch, keep_scratch_in, scratch_folder


def test_scratch_folders_are_in_the_results_folder_and_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    keep_scratch_in(tmp_path)
    with scratch_folder() as folder:
        Path(folder, "a").write_text("b")
        assert Path(folder).parent == tmp_path / "scratch"
    assert not Path(folder).exists()
    Path(tmp_path, "scratch", "left").mkdir()
    delete_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_compilers_are_in_the_folder(tmp_path: Path) -> None:
    before, temporary = dict(os.environ), tempfile.gettempdir()
    with compiler.compiler_files(str(tmp_path)):
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)
        assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path
    assert dict(os.environ) == before and tempfile.gettempdir() == temporary


def test_a_compiler_begins_and_ends_with_nothing_compiled() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    for _ in range(2):
        with compiler.compiling(compiler.AOT_EAGER) as made:
            assert made.graphs == 0
            made(function)(torch.ones(2))
            made(function)(torch.ones(2))
            assert (made.graphs, made.breaks) == (1, 0)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("torch._dynamo", "reset config"),
        ("torch._dynamo.config", "recompile_limit fail_on_recompile_limit_hit suppress_errors"),
        ("torch._dynamo.utils", "counters"),
        ("torch._dynamo.compiled_autograd", "_enable _disable"),
        ("torch._dynamo.device_interface", "get_interface_for_device"),
        ("torch._dynamo.repro.after_dynamo", "generate_dynamo_fx_repro_string"),
        ("torch._inductor.codecache", "_HEADER_DIR _HEADER_LOCK_DIR _precompile_header"),
        ("torch._inductor.codecache._precompile_header", "__wrapped__"),
        ("torch._inductor.config", "compile_threads"),
        ("torch._inductor.cpp_builder", "CppBuilder get_compiler_version_info"),
        ("torch._inductor.cpp_builder.CppBuilder", "build get_command_line get_target_file_path"),
        ("torch._inductor.cpu_vec_isa", "pick_vec_isa"),
        ("torch._inductor.utils", "clear_caches"),
    ],
)
def test_private_names_of_the_compiler_exist(module: str, names: str) -> None:
    found = pkgutil.resolve_name(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(("loads", "attempts"), [(True, 1), (False, 2)])
def test_a_library_that_could_be_loaded_is_not_tried_again(
    loads: bool, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def load(instructions: Any, library: str) -> bool:
        tried.append(library)
        return loads

    isa = importlib.import_module("torch._inductor.cpu_vec_isa")
    library, found = str(tmp_path / "a.so"), []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr(isa.VecISA, "_probe_load", load, raising=False)
    monkeypatch.setattr(
        isa, "pick_vec_isa", lambda: found.append(isa.VecISA._probe_load(None, library))
    )
    for _ in range(2):
        compiler._find_instructions(tmp_path)
    assert (found, len(tried)) == ([loads, loads], attempts)
    assert isa.VecISA._probe_load is load
