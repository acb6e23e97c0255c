"""Uses torch.compile in a process of the suite: puts the compiler's files into a temporary folder, and counts the
graphs that are compiled.

This module is the adapter over private names of torch's compiler; a test pins each name that is used. Repro scripts
contain this module.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from conformance.checks.behaviour.compiled_libraries import libraries_from_cache
from conformance.checks.scratch import scratch_folder
from devices.files import cache_root

#: The backend that runs the graphs of torch.compile op by op on the device.
AOT_EAGER = "aot_eager"
#: How often a function may be compiled again. Torch then stops compiling and runs it as it stands, which is an error here.
_COMPILED_AT_MOST = 16


@dataclass(frozen=True, slots=True)
class Compiler:
    """torch.compile with a given backend, within a block of ``compiling``."""

    backend: str

    def __call__(
        self, function: Callable[..., Any], *, dynamic: bool | None = None, fullgraph: bool = True
    ) -> Callable[..., Any]:
        """Returns the function compiled by torch.compile; by default, a graph break raises an exception."""
        made: Callable[..., Any] = torch.compile(
            function, backend=self.backend, dynamic=dynamic, fullgraph=fullgraph
        )
        return made

    @property
    def graphs(self) -> int:
        """The number of graphs that were compiled since the beginning of the block."""
        return int(_counters()["stats"]["unique_graphs"])

    @property
    def breaks(self) -> int:
        """The number of graph breaks since the begin of the block."""
        return int(sum(_counters()["graph_break"].values()))

    @property
    def backward_passes(self) -> int:
        """The number of backward passes that compiled autograd traced since the begin of the block."""
        return int(_counters()["compiled_autograd"]["captures"])

    @property
    def cached(self) -> int:
        """The number of graphs that Inductor read from its cache since the begin of the block."""
        return int(_counters()["inductor"]["fxgraph_cache_hit"])

    @staticmethod
    def switched_off() -> AbstractContextManager[None]:
        """Returns a context manager within which backward passes are not compiled."""
        made: AbstractContextManager[None] = _autograd()._disable()
        return made


def _counters() -> Any:
    return importlib.import_module("torch._dynamo.utils").counters


def _autograd() -> Any:
    return importlib.import_module("torch._dynamo.compiled_autograd")


@contextlib.contextmanager
def compiled_backward(compiler: Compiler) -> Iterator[None]:
    """Within the block, backward passes are traced and compiled by compiled autograd."""
    with _autograd()._enable(partial(compiler, fullgraph=False)):
        yield


@contextlib.contextmanager
def compiling(
    backend: str, folder: str | None = None, *, fake_cache: bool = True
) -> Iterator[Compiler]:
    """Yields a compiler that has not compiled anything yet. At the end of the block, the compiled code is discarded.
    The compiler's files are written to ``folder``; by default to a temporary folder, which is deleted at the end of the
    block. Without ``fake_cache``, the compiler computes the result of each call on fake tensors anew: with symbolic shapes,
    which hardly repeat, looking for it in torch's cache takes more time than it saves."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(scratch_folder()) if folder is None else folder
        stack.enter_context(compiler_files(place))
        dynamo: Any = importlib.import_module("torch._dynamo")
        limits = {
            "recompile_limit": _COMPILED_AT_MOST,
            "fail_on_recompile_limit_hit": True,
            "suppress_errors": False,
            "fake_tensor_cache_enabled": fake_cache,
        }
        stack.enter_context(dynamo.config.patch(**limits))
        stack.enter_context(_guards_not_timed())
        if backend != AOT_EAGER:
            stack.enter_context(_code_generator())
        dynamo.reset()
        _counters().clear()
        stack.callback(dynamo.reset)
        yield Compiler(backend)


@contextlib.contextmanager
def _guards_not_timed() -> Iterator[None]:
    """Keeps torch from measuring how long the guards of each compiled function take. For this measurement torch flushes
    the processor's caches, which takes half of the time of compiling a small function."""
    guards: Any = importlib.import_module("torch._dynamo.guards")
    timed = getattr(guards, "profile_guard_manager", None)
    if timed is None:  # another version of torch
        yield
        return
    guards.profile_guard_manager = _takes_no_time
    try:
        yield
    finally:
        guards.profile_guard_manager = timed


def _takes_no_time(*given: Any) -> float:
    return 0.0


@contextlib.contextmanager
def compiler_files(folder: str) -> Iterator[None]:
    """Within the block, torch's compilers, and the compilers that they start, write their caches and temporary files to
    ``folder``."""
    below = Path(folder, "inductor")
    values = {
        "TMPDIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": str(below),
        "TRITON_CACHE_DIR": str(below / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # read when Inductor is imported: more would start processes
    }
    before, temporary = {name: os.environ.get(name) for name in values}, tempfile.tempdir
    os.environ.update(values)
    tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable within the block, and restores its value afterwards."""
    before = os.environ[name]
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ[name] = before


@contextlib.contextmanager
def _code_generator() -> Iterator[None]:
    """Prepares Inductor for a block: Inductor compiles in this process, and its lists of written files are cleared at
    both ends of the block.

    Three sorts of files are kept in the suite's cache, because creating them takes longer than a case: the precompiled
    header of C++ kernels, the libraries with which Inductor finds out which vector instructions are available, and the
    compiled kernels. Their names contain a hash of the compiler, its options and their source.
    """
    code: Any = importlib.import_module("torch._inductor.codecache")
    config: Any = importlib.import_module("torch._inductor.config")
    kept = cache_root() / "compiler"
    headers = kept / "headers"
    values = {
        "_HEADER_DIR": str(headers),
        "_HEADER_LOCK_DIR": str(headers / "locks"),
        "_precompile_header": _header_maker(str(headers), code._precompile_header),
    }
    before = {name: getattr(code, name) for name in values}
    with config.patch(compile_threads=1), libraries_from_cache(kept / "libraries", headers):
        for name, value in values.items():
            setattr(code, name, value)
        _find_instructions(kept / "instructions")
        _forget_files()
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(code, name, value)
            _forget_files()


def _find_instructions(folder: Path) -> None:
    """Makes Inductor find out, once per process, which vector instructions it can use.

    For each kind of instructions, Inductor starts a process that loads a library from the folder, which takes some
    tenths of a second. An empty file next to a library that could be loaded saves this in later processes.
    """
    isa: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    load: Any = getattr(isa.VecISA, "_probe_load", None)  # since torch 2.13

    def load_once(instructions: Any, library: str) -> bool:
        loads = Path(f"{library}.loads")
        if not loads.exists() and load(instructions, library):
            loads.touch()
        return loads.exists()

    with _variable("TORCHINDUCTOR_CACHE_DIR", str(folder)):
        if load is None:
            isa.pick_vec_isa()
            return
        isa.VecISA._probe_load = load_once
        try:
            isa.pick_vec_isa()
        finally:
            isa.VecISA._probe_load = load


@cache
def _header_maker(folder: str, precompile: Any) -> Callable[..., str]:
    """Returns torch's function that precompiles a header, with its results cached for the whole process. Without this,
    torch would compute the text of all headers again for each block."""
    made: Callable[..., str] = cache(precompile.__wrapped__)
    return made


def _forget_files() -> None:
    importlib.import_module("torch._inductor.utils").clear_caches()


def device_interface(device: str) -> Any:
    """Returns the device interface that is registered with Dynamo for a device or device type; None if there is
    none."""
    registry: Any = importlib.import_module("torch._dynamo.device_interface")
    try:
        return registry.get_interface_for_device(device)
    except NotImplementedError:
        return None


def written_graph(
    program: Callable[..., Any], inputs: Sequence[torch.Tensor], backend: str, folder: str
) -> str:
    """Writes to a folder the script with which torch reproduces a compiled graph, and the graph's inputs. Returns the
    path of the script, which compiles the graph with the backend and runs it."""
    repro: Any = importlib.import_module("torch._dynamo.repro.after_dynamo")
    path = os.path.join(folder, "graph.py")

    def write(graph: Any, given: Sequence[Any]) -> Any:
        text = repro.generate_dynamo_fx_repro_string(graph, given, backend, save_dir=folder)
        Path(path).write_text(text, encoding="utf-8")
        return graph.forward

    with compiling(AOT_EAGER, folder):
        torch.compile(program, backend=write, fullgraph=True)(*inputs)
    return path
