"""Judges many random wrong kernels, and measures what the judgements leave behind in the calling process: file
descriptors, processes, threads, temporary files, modules, settings, and memory.

    python -m tests.kernels.leaks --count 200 --seed 1 --seconds 3600
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.kernels.judge import process_count
from conformance.kernels.judgement import Verdict
from conformance.kernels.zygote import close, zygote

_HEAD = """
import os, subprocess, sys, tempfile, threading, time
import torch

def reference(x):
    return x * 2 + 1

def samples():
    yield (torch.linspace(-2, 2, 12).reshape(3, 4),)
    yield (torch.linspace(-1, 3, 35).reshape(5, 7),)
"""

#: What a kernel does besides its work: nothing, or something that leaves a trace in its process.
_DEEDS = (
    "pass",
    "open('/dev/null')",
    "open(tempfile.mkstemp()[1], 'w').write('x')",
    "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
    "subprocess.Popen(['sleep', '30'])",
    "subprocess.Popen(['sleep', '30'], start_new_session=True)",
    "os.pipe()",
    "os.environ['CONFORM_LEAK'] = '1'",
    "os.chdir('/')",
    "torch.manual_seed(3)",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(True)",
    "sys.modules['conform_leak'] = torch",
    "torch.equal = None",
)
#: What a kernel returns: never what the reference returns for all inputs.
_RESULTS = (
    "x * 2",
    "x * {a} + 1",
    "(x * 2 + 1).double()",
    "(x * 2 + 1).mT",
    "torch.where(x > {a}, x, x * 2 + 1)",
    "(x * 2 + 1)[..., :-1]",
    "(x * 2 + 1).half().float() + {a}",
    "torch.zeros_like(x)",
    "x.mul_(2).add_(1)",
    "None",
    "[x * 2 + 1]",
)
#: The number of kernels between two looks at the memory, and the most kB by which the memory of this process may grow:
#: eight for each of a thousand judgements.
_OFTEN, _GROWTH = 100, 8_000
#: How a kernel ends instead of returning, in some of the calls.
_ENDS = ("os._exit(0)", "os.abort()", "raise RuntimeError('no')", "raise SystemExit(3)")


def source_of(count: int, seed: int) -> str:
    """Returns the source of a file with ``count`` random wrong kernels named ``kernel_0``, ``kernel_1`` and so on."""
    drawn, text = random.Random(seed), [_HEAD]
    for number in range(count):
        body = [f"    {drawn.choice(_DEEDS)}"]
        if drawn.random() < 0.15:
            body.append(f"    if x.shape[0] == {drawn.choice((3, 5))}:")
            body.append(f"        {drawn.choice(_ENDS)}")
        body.append(
            f"    return {drawn.choice(_RESULTS).format(a=round(drawn.uniform(0.1, 1.9), 3))}"
        )
        text.append("\n".join([f"def kernel_{number}(x):", *body, ""]))
    return "\n\n".join(text)


def state() -> dict[str, Any]:
    """Returns what judgements may leave behind in this process."""
    gc.collect()
    return {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "processes of the zygote": process_count(),
        "threads": threading.active_count(),
        "folders of judgements": len([*zygote().folder.iterdir()]),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "modules": len(sys.modules),
        "default dtype": str(torch.get_default_dtype()),
        "random state": hash(bytes(torch.get_rng_state().numpy())),
        "gradient mode": torch.is_grad_enabled(),
        "working directory": os.getcwd(),
        "environment": dict(os.environ),
        "torch.equal": torch.equal is not None,
    }


def memory() -> dict[str, int]:
    """Returns the resident memory of this process and of the zygote, in kB, and the number of Python objects here."""
    gc.collect()
    processes = {"this process": os.getpid(), "the zygote": zygote().process.pid}
    found = {name: _resident(pid) for name, pid in processes.items()}
    return {**found, "objects": len(gc.get_objects())}


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [each for each in lines if each.startswith("VmRSS:")]
    return int(line.split()[1])


@dataclass
class Measured:
    """What the judgements left behind: ``before`` and ``after`` are states, ``memory`` has the memory after every hundredth
    kernel, with the number of kernels. ``accepted`` are the names of the kernels that were not judged wrong."""

    count: int
    before: dict[str, Any]
    after: dict[str, Any]
    memory: dict[int, dict[str, int]]
    accepted: list[str]

    @property
    def changed(self) -> dict[str, Any]:
        return {
            n: [self.before[n], self.after[n]]
            for n in self.before
            if self.before[n] != self.after[n]
        }


def measure(count: int, seed: int, seconds: float = math.inf) -> Measured:
    """Judges ``count`` random wrong kernels after a first one, or as many as can be begun in ``seconds``. The temporary
    files are those of a folder of its own, for which a new zygote is started."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        own = Path(folder) / "temporary"
        own.mkdir()
        patch.setenv("TMPDIR", str(own))
        patch.setattr(tempfile, "tempdir", str(own))
        close()
        path = Path(folder) / "conform_leaks.py"
        path.write_text(source_of(count + 1, seed), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, folder)
        try:
            spec.loader.exec_module(module)
            given = {"reference": module.reference, "samples": module.samples}
            settings = {"layouts": False, "shapes": False, "guard_pages": False, "seconds": 5.0}
            judge(module.kernel_0, **given, **settings)
            before, kept, accepted = state(), {0: memory()}, list[str]()
            end, number = time.monotonic() + seconds, 0
            while number < count and time.monotonic() < end:
                number += 1
                found = judge(getattr(module, f"kernel_{number}"), **given, **settings)
                if found.verdict is not Verdict.WRONG:
                    accepted.append(f"kernel_{number}")
                if number % _OFTEN == 0:
                    kept[number] = memory()
                    print(number, kept[number], file=sys.stderr, flush=True)
            kept[number] = memory()
            return Measured(number, before, state(), kept, accepted)
        finally:
            close()
            sys.path.remove(folder)
            sys.modules.pop(path.stem, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    given = parser.parse_args()
    began = time.monotonic()
    found = measure(given.count, given.seed, given.seconds)
    said = {"kernels": found.count, "not judged wrong": found.accepted, "changed": found.changed}
    said |= {"state": {n: v for n, v in found.after.items() if isinstance(v, int)}}
    print(json.dumps({**said, "memory": found.memory, "seconds": round(time.monotonic() - began)}))
    grown = found.memory[found.count]["this process"] - found.memory[0]["this process"]
    return 1 if found.changed or found.accepted or grown > _GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
