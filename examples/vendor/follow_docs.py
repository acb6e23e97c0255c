"""Follow docs/vendors.md to the letter: run its ``sh`` blocks in a clean environment, and time each.

    python examples/vendor/follow_docs.py            # builds both wheels, needs no network
    python examples/vendor/follow_docs.py --until 2  # the first two blocks alone

The environment is a fresh virtual one outside the checkout. torch and the other dependencies are those of
the interpreter that runs this (found through a .pth file), so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_SKIPPED = shutil.ignore_patterns(
    ".git", ".*_cache", "__pycache__", "*.egg-info", "build", "conform-results", ".tox", ".venv"
)


def steps(page: Path) -> list[str]:
    """The ``sh`` blocks of a page, in order."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def build_wheel(source: Path, wheels: Path) -> Path:
    """Build the wheel of a folder from a copy, so that nothing is written beside the sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "source"
        shutil.copytree(source, copy, ignore=_SKIPPED)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"),
                *("--no-deps", "--no-index", "--wheel-dir", str(Path(scratch) / "out"), str(copy)),
            ],
            check=True,
        )
        (built,) = (Path(scratch) / "out").glob("*.whl")
        wheels.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, wheels))


def clean_environment(folder: Path) -> Path:
    """A virtual environment that sees the running interpreter's packages; its python. Without theirs
    editable installs, whose .pth files are not read there."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True)
    borrowed = sysconfig.get_path("purelib")
    (Path(site.stdout.strip()) / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    return python


def install(python: Path, *wheels: Path) -> None:
    """Install wheels without their dependencies, by the pip that is borrowed: here, even where the
    interpreter that it is borrowed from has the same version."""
    options = ("--quiet", "--no-deps", "--no-index", "--ignore-installed")
    subprocess.run([python, "-m", "pip", "install", *options, *map(str, wheels)], check=True)


def environment(python: Path, **more: str) -> dict[str, str]:
    """The variables of a shell in which that environment is active."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST_", "GITHUB_"))
    }
    path = f"{python.parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(python.parents[1]), **more}


def main() -> int:
    """Run the steps. Returns the first exit status that is not 0."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--until", type=int, default=None, help="stop after this block")
    options.add_argument("--keep", type=Path, default=None, help="work here, and leave it there")
    asked = options.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="abacus-"))
    began = time.monotonic()
    ours = build_wheel(CHECKOUT, folder / "wheels")
    theirs = build_wheel(CHECKOUT / "examples" / "vendor", folder / "wheels")
    python = clean_environment(folder / "venv")
    install(python, theirs)  # the backend is there before its vendor hears of us
    print(f"prepared in {time.monotonic() - began:.0f} s: {folder}", flush=True)
    variables = environment(python, TORCH_CONFORMANCE=str(ours), PIP_NO_INDEX="1")
    began = time.monotonic()
    for number, block in enumerate(steps(CHECKOUT / "docs" / "vendors.md")[: asked.until], 1):
        print(f"--- step {number}\n{block.rstrip()}", flush=True)
        start = time.monotonic()
        done = subprocess.run(["bash", "-ec", block], cwd=folder, env=variables, check=False)
        print(
            f"--- step {number}: exit {done.returncode}, {time.monotonic() - start:.1f} s",
            flush=True,
        )
        if done.returncode:
            return done.returncode
    print(f"all steps: {time.monotonic() - began:.0f} s")
    if asked.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
