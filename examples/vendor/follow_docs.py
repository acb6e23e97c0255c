"""Run the ``sh`` blocks of docs/vendors.md in a clean environment, and compare their results with the page.

    python examples/vendor/follow_docs.py            # builds both wheels, needs no network
    python examples/vendor/follow_docs.py --until 2  # the first two blocks alone
    python examples/vendor/follow_docs.py --ops mul  # only this op: the gate then says that the runs are partial

A command must exit with 0, or with the status in a comment at its end (``# exit 1``). A ``text`` block lists lines that the
preceding block must print; ``…`` stands for any text. The environment is a new virtual environment outside of the checkout.
Its torch and other dependencies are those of the interpreter that runs this script, found through a .pth file, so that
nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: The names of folders that hold installed packages.
_SITES = ("site-packages", "dist-packages")
_SKIPPED = shutil.ignore_patterns(
    ".git", ".*_cache", "__pycache__", "*.egg-info", "build", "conform-results", ".tox", ".venv"
)


@dataclass(frozen=True, slots=True)
class Step:
    """A ``sh`` block of the page: its commands with their expected exit statuses, and lines that they must print."""

    commands: tuple[tuple[str, int], ...]
    printed: tuple[str, ...]

    def missing(self, output: str) -> list[str]:
        """The lines of the page that were not printed."""
        lines = [line.rstrip() for line in output.splitlines()]
        patterns = [".*".join(map(re.escape, line.split("…"))) for line in self.printed]
        return [
            line
            for line, pattern in zip(self.printed, patterns, strict=True)
            if not any(re.fullmatch(pattern, each) for each in lines)
        ]


def steps(page: Path) -> list[Step]:
    """The ``sh`` blocks of a page, in order."""
    blocks = re.findall(
        r"^```(sh|text)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    found: list[Step] = []
    for kind, text in blocks:
        lines = tuple(line for line in text.splitlines() if line.strip())
        if kind == "sh":
            exits = (re.search(r"# exit (\d)$", line) for line in lines)
            found.append(
                Step(
                    tuple((line, int(code[1]) if code else 0) for line, code in zip(lines, exits)),
                    (),
                )
            )
        else:
            found[-1] = replace(found[-1], printed=lines)
    return found


def follow(
    found: Iterable[Step], folder: Path, variables: Mapping[str, str], ops: str = ""
) -> Iterator[str]:
    """Run the commands of these steps. Yields a message for each difference from the page."""
    if ops:
        variables = {**variables, "PYTEST_ADDOPTS": f"--ops={ops}"}
    for number, step in enumerate(found, 1):
        output = ""
        for command, wanted in step.commands:
            if ops:  # partial runs have a default folder of their own
                command = re.sub(r"-quick$", "-quick-partial", command)
            print(f"--- step {number}: {command}", flush=True)
            start = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=dict(variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            took, output = time.monotonic() - start, output + done.stdout
            print(f"{done.stdout}--- exit {done.returncode}, {took:.1f} s", flush=True)
            if ops and command.startswith("conform gate"):  # it refuses partial runs
                wanted = 2
            if done.returncode != wanted:
                yield f"{command}: exit {done.returncode}, expected {wanted}\n{done.stdout}"
        yield from (
            f"step {number} did not print {line!r}\n{output}" for line in step.missing(output)
        )


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


def build_sdist(source: Path, folder: Path) -> Path:
    """Build the source distribution of a folder from a copy, so that nothing is written beside the sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "source"
        shutil.copytree(source, copy, ignore=_SKIPPED)
        build = (
            "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        )
        command = [sys.executable, "-c", build, str(folder.absolute())]
        subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.tar.gz")
    return built


def contents(wheel: Path) -> set[str]:
    """The names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def clean_environment(folder: Path, *folders: Path) -> Path:
    """Make a virtual environment that sees the packages in ``folders``, by default all of the running interpreter.

    Returns its python. Editable installs are not seen there, because their .pth files are not read.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True)
    borrowed = folders or [path for path in map(Path, sys.path) if path.name in _SITES]
    lines = "".join(f"{path}\n" for path in borrowed)
    (Path(site.stdout.strip()) / "borrowed.pth").write_text(lines, encoding="utf-8")
    return python


def install(python: Path, *wheels: Path) -> None:
    """Install wheels without their dependencies, even if the borrowed packages have the same version. The pip that runs is
    a borrowed one."""
    options = ("--quiet", "--no-deps", "--no-index", "--ignore-installed")
    subprocess.run([python, "-m", "pip", "install", *options, *map(str, wheels)], check=True)


def environment(python: Path, **more: str) -> dict[str, str]:
    """The variables of a shell in which the environment of this python is active."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST_", "GITHUB_"))
    }
    path = f"{python.parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(python.parents[1]), **more}


def main() -> int:
    """Run the steps until one differs from the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--until", type=int, default=None, help="stop after this block")
    options.add_argument("--keep", type=Path, default=None, help="work here, and leave it there")
    options.add_argument("--ops", default="", help="only these ops")
    asked = options.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="abacus-"))
    began = time.monotonic()
    ours = build_wheel(CHECKOUT, folder / "wheels")
    theirs = build_wheel(CHECKOUT / "examples" / "vendor", folder / "wheels")
    python = clean_environment(folder / "venv")
    install(python, theirs)  # a vendor has the backend before the suite
    print(f"prepared in {time.monotonic() - began:.0f} s: {folder}", flush=True)
    variables = environment(python, TORCH_CONFORMANCE=str(ours), PIP_NO_INDEX="1")
    began = time.monotonic()
    for problem in follow(
        steps(CHECKOUT / "docs" / "vendors.md")[: asked.until], folder, variables, asked.ops
    ):
        print(problem, file=sys.stderr)
        return 1
    print(f"all steps: {time.monotonic() - began:.0f} s")
    if asked.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
