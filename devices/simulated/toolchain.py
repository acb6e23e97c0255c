"""What building the device needs of the machine, asked without torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig


def missing_tools() -> str | None:
    """One line on what the build lacks here and how to get it; None where nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"the simulated device needs Linux (memfd_create), this is {sys.platform}"
    compiler = os.environ.get("CXX", "c++")
    lacking = []
    if shutil.which(compiler.split()[0]) is None:
        lacking.append(f"a C++20 compiler ('{compiler}' is not on PATH)")
    path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
    if shutil.which("ninja", path=path) is None:
        lacking.append("ninja")
    if not lacking:
        return None
    return (
        f"the simulated device is built at first use, and this machine lacks {' and '.join(lacking)}: "
        "install them (Debian, Ubuntu: apt install g++ ninja-build; Fedora: dnf install gcc-c++ "
        "ninja-build; ninja also by pip), or test another device, such as --device cpu"
    )
