"""The bench of strangers: small backends, each with a manner that real ones have, and what is red on it and why.

``python -m tests.strangers.bench [NAME…] [--ops GLOB,…] [--keep FOLDER]`` takes them through their first day: init,
the gate, a fault planted by an update of the vendor's module, the gate, ``conform manifest update``, the gate. Without
``--ops`` that is plan quick as a whole, some minutes each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devices import registry
from devices.cell import Outcome, Verdict
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.compare import tensors_of
from reports.model import CellResult
from tests.plugin.running import Ran, cells_of, run_conform

MODULES = Path(__file__).with_name("modules")
#: Holds a distribution that is installed where this folder is on the path.
AUTOLOADED = Path(__file__).with_name("autoloaded")

#: Cells whose outcome says that nothing is wrong.
_SOUND = frozenset({Outcome.PASS, Outcome.AMBIGUOUS})


#: What the common base does not have; `is_available` is missing in the module of `strange_bare` alone.
_LACKS = ("aten::_copy_from", "has no attribute 'is_available'")


@dataclass(frozen=True, slots=True)
class Stranger:
    """A backend: its device string, the module to import (empty if torch loads it), and its known manners.

    ``manners`` are globs over cells that are rightly red, each with the reason, and ``lacks`` the kernels and functions
    that it does not have; ``environment`` makes its manner bearable in a test. What is wrong with it may be known of
    the devices ``known``.
    """

    device: str
    module: str
    manners: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""  # what the vendor calls it
    lacks: tuple[str, ...] = _LACKS
    known: tuple[str, ...] = ("cpu",)  # the numbers of most strangers are the CPU's

    @property
    def name(self) -> str:
        return self.folder or f"my{self.device}"

    def explained(self, result: CellResult) -> bool:
        """Whether it is known why this cell is red."""
        return (
            any(fnmatchcase(str(result.key), pattern) for pattern in self.manners)
            or any(name in result.message for name in self.lacks)
            or any(known_of(name).expect(result.key) is not None for name in self.known)
        )


@cache
def known_of(name: str) -> Matcher:
    """What is known to be wrong with a device of this repository."""
    device = registry.get(name)
    assert device.folder is not None
    return Matcher(Manifest.load(device.folder / "expected.toml").active(device.facts()))


#: Of those whose kernels the common base has: operands on the host are taken, and `torch.tensor` needs a copy.
_BASE = {
    "dispatch.cross_device::*": "operands on the host are accepted",
    "layout.out_resize::*": "an `out=` on the host is accepted",
    "layout.views::*": "no conjugate or negative bit is kept",
    "dispatch.error_inputs::*": "copies between devices have no kernel: aten::_copy_from",
    # Where a device has no kernel for lists, torch loops over the op of one tensor, which counts its writes; the common
    # base takes the op on lists itself, as CUDA's kernels do, and does not call increment_version as they do.
    **dict.fromkeys(
        ["optim.foreach::*", "autograd.version_counter::*foreach*"],
        "in-place ops on lists do not count as writes",
    ),
}
_DIES = "a call with an `out=` of another shape ends the process"
_OUT = dict.fromkeys(
    [
        f"layout.{each}::*"
        for each in ("bounds", "out_kept", "out_resize", "variants", "overlap_raises")
    ],
    _DIES,
)

#: One that has a kernel of `mul`, and of no view.
_CARRIES = {
    "*::neg*": "it has no kernel of neg",
    **dict.fromkeys(
        [f"layout.{each}::mul*" for each in ("inplace", "variants", "overlap_raises")],
        "it has no kernels of mul_ and of slices",
    ),
    # The gradient of a broadcast operand: 'run_backward returned NULL without setting an exception', or SIGABRT.
    **dict.fromkeys(
        [f"autograd.{each}::mul*" for each in ("first", "second")],
        "it has no kernel of sum, and an exception from Python in a thread of backward ends the process",
    ),
}

#: Torch's own lazy tensors: the descriptor of `lazy` permits the fallbacks that a draft of it does not list.
_FALLS_BACK = dict.fromkeys(
    ["dispatch.no_silent_fallback::*", "dispatch.unsupported::*"],
    "ops without a node run on the CPU (torch/csrc/lazy/ts_backend/ts_eager_fallback.cpp)",
) | {
    # A draft declares float8, as tensors of it can be made; the descriptor of `lazy` does not.
    "dispatch.refusals::*": "a number of float8 has no hash: an internal assertion (torch/csrc/lazy/core/hash.h)"
}

STRANGERS: tuple[Stranger, ...] = (
    Stranger("bare", "strange_bare", _BASE),
    Stranger(
        *("draft", "strange_raising", _BASE),
        lacks=(*_LACKS, "synchronize is not wired up"),  # by the first cell that waits
    ),
    Stranger("stuck", "strange_hanging", _BASE),
    Stranger("fatal", "strange_dying", _BASE),
    Stranger("modal", "strange_mode", _BASE),
    Stranger("homely", "strange_meddling", _BASE),
    Stranger("greedy", "strange_greedy", _BASE),
    Stranger("auto", "", _BASE),
    Stranger("chatty", "strange_printing", _BASE),
    Stranger(
        "sleepy",
        "strange_slow",
        _BASE,
        {"STRANGE_IMPORT_SECONDS": "3", "STRANGE_FIRST_SECONDS": "0.1"},
    ),
    Stranger(
        "brittle",
        "strange_crashing",
        _BASE | _OUT,
        lacks=(*_LACKS, "killed by SIGSEGV", "ends the process", "'int' object has no attribute"),
    ),
    Stranger(
        *("fragile", "strange_fragile"),
        _BASE | _OUT | {"layout.values::*": "a negative view ends the process"},
    ),
    Stranger("special", "strange_named", _BASE),
    Stranger("slim", "strange_narrow", _BASE, folder="strange_narrow"),  # as its module
    Stranger("stub", "strange_stub", _BASE | {"*[[]float16]": "its conversion to float16 adds 1"}),
    Stranger(
        *("carrier", "strange_carrying", _BASE | _CARRIES),
        lacks=(*_LACKS, "is not implemented for 'carrier'"),
    ),
    Stranger("busy", "strange_threads", _BASE),
    Stranger("tardy", "strange_late", _BASE),
    Stranger("twin", "strange_two", _BASE),
    Stranger("simulated", "strange_native", _OUT),
    Stranger("lazy", "strange_lazy", _FALLS_BACK, known=("cpu", "lazy")),
)


@cache
def calls_mul(op_id: str) -> bool:
    """Whether the CPU's way of computing an op, its gradient or that of the gradient multiplies by ``aten::mul``: a number
    is made a tensor on the way."""
    if op_id == "mul":
        return True
    op, seen = catalogue()[op_id], set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:  # type: ignore[override]
            seen.add(func)
            return func(*args, **(kwargs or {}))

    for sample in samples_of(op, "float32", 16):
        given = [t.detach().requires_grad_(t.is_floating_point()) for t in sample.tensors]
        args, kwargs = sample.call.bind(given)
        with Calls(), suppress(Exception):  # some samples are refused: the others tell
            results = [t for t in tensors_of(op.function(*args, **kwargs)) if t.requires_grad]
            for _ in range(2):
                asked, sent = [t for t in given if t.requires_grad], map(torch.rand_like, results)
                found = torch.autograd.grad(
                    results, asked, list(sent), create_graph=True, allow_unused=True
                )
                results = [t for t in found if t is not None and t.requires_grad]
    return not seen.isdisjoint({torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar})


class Unlike(AssertionError):
    """A step of the first day ended otherwise than it should."""


@dataclass(slots=True)
class FirstDay:
    """A stranger's first day in a folder of its own. Each step raises Unlike where it does not end as it should."""

    stranger: Stranger
    folder: Path
    cache: Path
    ops: str = ""

    def conform(self, *arguments: str, fault: bool = False) -> Ran:
        """Run ``conform ARGUMENTS`` where the backend can be imported. No run may end in a traceback."""
        path = [str(MODULES), str(Path(__file__).resolve().parents[2])]
        if not self.stranger.module:
            path.append(str(AUTOLOADED))
        ran = run_conform(
            *arguments,
            cache=self.cache,
            cwd=self.folder,
            PYTHONPATH=":".join(path),
            STRANGE_FAULT="1" if fault else "0",
            **self.stranger.environment,
        )
        if "Traceback (most recent call last)" in ran.text or "INTERNALERROR" in ran.text:
            raise Unlike(f"{' '.join(arguments)}: a traceback\n{ran.text}")
        return ran

    @property
    def _selected(self) -> tuple[str, ...]:
        return (f"--ops={self.ops}",) if self.ops else ()

    def init(self, *options: str) -> str:
        """Describe the device. Returns what was printed."""
        ran = self.conform(
            *("init", self.stranger.name, *options, "--module", self.stranger.module),
            *("--device-string", self.stranger.device, *self._selected),
        )
        if ran.code != 0:
            raise Unlike(f"init: exit {ran.code}\n{ran.text}")
        return ran.text

    def run(self, results: str, *, fault: bool = False) -> int:
        """Run it against its manifest. Returns the exit status."""
        ran = self.conform(
            *(
                "run",
                "-q",
                "--tb=no",
                "-n",
                "1",
                f"--descriptor={self.folder / self.stranger.name}",
            ),
            *(f"--results={self.folder / results}", *self._selected),
            fault=fault,
        )
        (self.folder / f"{results}.txt").write_text(ran.text, encoding="utf-8")
        return ran.code

    def green(self, results: str, *, fault: bool = False) -> None:
        """A run that is green, in which every red cell is explained by a known manner and none is an error."""
        code = self.run(results, fault=fault)
        cells = cells_of(self.folder / results)
        errors = [str(key) for key, result in cells.items() if result.outcome is Outcome.ERROR]
        if errors:
            raise Unlike(f"{results}: error cells, which are defects of the harness: {errors}")
        if code != 0:
            text = (self.folder / f"{results}.txt").read_text(encoding="utf-8")
            raise Unlike(f"{results}: exit {code}, expected a green gate\n{text}")
        unexplained = [
            f"{key}: {result.outcome}: {textwrap.shorten(result.message, 200)}"
            for key, result in cells.items()
            if result.verdict is Verdict.EXPECTED and not self.stranger.explained(result)
        ]
        if unexplained and not fault:
            told = "\n  ".join(unexplained)
            raise Unlike(f"{results}: red cells that no known manner explains:\n  {told}")

    def regresses(self, results: str) -> None:
        """With the new fault, exactly cells of ops that call ``mul`` regress, cells of ``mul`` itself among them."""
        if self.run(results, fault=True) != 1:
            raise Unlike(f"{results}: the new fault is not noticed")
        cells = cells_of(self.folder / results)
        regressed = {k for k, each in cells.items() if each.verdict is Verdict.REGRESSION}
        ops = {key.unit for key in regressed}
        if "mul" not in ops or not all(map(calls_mul, ops)):
            raise Unlike(f"{results}: regressions {sorted(map(str, regressed))}")

    def updated(self, *runs: str) -> None:
        """Record the new fault in the manifest, from runs that agree."""
        ran = self.conform(
            *("manifest", "update", *(str(self.folder / run) for run in runs)),
            *(f"--descriptor={self.folder / self.stranger.name}", "--reason=mul adds since 2.0"),
            *("--kind=device-bug",),
        )
        if ran.code != 0:
            raise Unlike(f"manifest update: exit {ran.code}\n{ran.text}")

    def all(self) -> None:
        """The whole day."""
        self.init()
        self.green("first")
        self.regresses("fault-1")
        self.regresses("fault-2")
        self.updated("fault-1", "fault-2")
        self.green("mended", fault=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", help="device strings; all of them by default")
    options.add_argument("--ops", default="", help="only these ops")
    options.add_argument("--keep", type=Path, help="work here, and leave it there")
    options.add_argument("--cache", type=Path, default=None)
    asked = options.parse_args()
    top = asked.keep or Path(tempfile.mkdtemp(prefix="strangers-"))
    failed = 0
    for stranger in STRANGERS:
        if asked.names and stranger.device not in asked.names:
            continue
        folder = top / stranger.device
        folder.mkdir(parents=True, exist_ok=True)
        try:
            FirstDay(stranger, folder, asked.cache or top / "cache", asked.ops).all()
        except Unlike as error:
            failed += 1
            print(f"{stranger.device}: {error}", flush=True)
        else:
            print(f"{stranger.device}: a green gate", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
