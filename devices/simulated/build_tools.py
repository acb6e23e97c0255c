"""Finds out what is missing on a machine to build the simulated device."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig

from devices.machine import torch_has_header

#: The newest that it is built with: the interface of torch.accelerator.Graph.
_HEADER = "ATen/core/GraphImplInterface.h"


def missing_tools() -> str | None:
    """Returns one line that says what is missing on the current machine to build the simulated device, and what to do;
    None if nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"the simulated device needs Linux (memfd_create), this is {sys.platform}"
    if not torch_has_header(_HEADER):
        return (
            f"the simulated device needs torch 2.13: the installed torch lacks a header that the build needs ({_HEADER}). "
            "Install torch 2.13, or test another device, such as --device cpu"
        )
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
