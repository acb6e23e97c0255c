"""Environments that hold what pip installs with the suite, and nothing else: with torch, and without."""

from __future__ import annotations

import email
import importlib.metadata
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from examples.vendor import follow_docs


def required_by(wheel: Path) -> list[Requirement]:
    """The dependencies that a wheel declares, those of its extras too."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    return [Requirement(each) for each in metadata.get_all("Requires-Dist", [])]


def installed_with(wheel: Path, extra: str = "") -> set[str]:
    """The names of the distributions that ``pip install WHEEL[extra]`` brings here: its dependencies, and theirs."""
    found: set[str] = set()
    wanted = required_by(wheel)
    while wanted:
        requirement = wanted.pop()
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        name = canonicalize_name(requirement.name)
        if applies and name not in found:
            found.add(name)
            wanted += map(Requirement, importlib.metadata.requires(name) or ())
    return found


def link(distributions: set[str], folder: Path) -> Path:
    """Link the installed files of some distributions into a folder."""
    folder.mkdir(parents=True)
    for name in sorted(distributions):
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def environment_for(wheel: Path, folder: Path, *, torch: bool) -> Path:
    """Make a virtual environment that sees the wheel's dependencies and pip, but not the wheel. Returns its python.

    With ``torch`` it sees torch too, and what builds the package of a vendor.
    """
    more = {"pip", "setuptools"} if torch else {"pip"}
    linked = link(installed_with(wheel, "torch" if torch else "") | more, folder / "linked")
    return follow_docs.clean_environment(folder / "venv", linked)
