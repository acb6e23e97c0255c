"""``python -m tests.simulated.tsan [OPTIONS OF STRESS]``: the stress of the device under ThreadSanitizer.

The device's library is built with ``-fsanitize=thread`` into the cache (some minutes, once a state of the sources);
torch and Python are as they are, so that ``tsan.supp`` leaves out what is known of them by halves. The exit status is
66 where a data race or a misused lock was seen. Needs g++ with libtsan, and ``setarch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils import cpp_extension

from devices.files import cache_root
from devices.simulated.backend import build

FLAGS = ("-fsanitize=thread", "-g1")
HERE = Path(__file__).parent


def built() -> None:
    """Build the library where the cache does not hold it. It cannot be loaded without libtsan, hence not by build.py."""
    folder = cache_root() / "simulated" / build._key()
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    lib = Path(torch.__file__).parent / "lib"
    includes = [folder, *cpp_extension.include_paths("cpu"), sysconfig.get_path("include")]
    objects = []
    for unit in build.sources(folder):
        objects.append(folder / f"{unit.stem}.o")
        print(f"compiling {unit.name} ...", file=sys.stderr, flush=True)
        subprocess.run(
            ["g++", "-c", "-fPIC", *build.FLAGS, *FLAGS, *(f"-I{path}" for path in includes)]
            + [f"-DTORCH_EXTENSION_NAME={build.NAME}", unit, "-o", objects[-1]],
            check=True,
        )
    torch_s = [f"-l{name}" for name in ("c10", "torch_cpu", "torch", "torch_python")]
    subprocess.run(
        ["g++", "-shared", *FLAGS, *objects, f"-L{lib}", *torch_s, "-pthread"]
        + ["-o", folder / f"{build.NAME}.so"],
        check=True,
    )
    (folder / "complete").touch()


def main(arguments: Sequence[str]) -> int:
    """The command."""
    os.environ["SIMULATED_CXXFLAGS"] = " ".join(FLAGS)
    built()
    found = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, check=True)
    options = f"suppressions={HERE / 'tsan.supp'} exitcode=66 history_size=4 report_signal_unsafe=0"
    # Without setarch addresses are drawn from a range that ThreadSanitizer of GCC 12 does not know.
    return subprocess.run(
        ["setarch", "-R", sys.executable, "-m", "tests.simulated.stress", *arguments],
        env={
            **os.environ,
            "LD_PRELOAD": os.fsdecode(found.stdout).strip(),
            "TSAN_OPTIONS": options,
        },
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
