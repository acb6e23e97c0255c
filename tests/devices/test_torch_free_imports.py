"""What `reports` and the planning need of a device comes without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_DESCRIPTORS = sorted(
    f"devices.{path.parent.name}.descriptor" for path in (_ROOT / "devices").glob("*/descriptor.py")
)
_ROOM = sorted(
    f"devices.{path.stem}" for path in (_ROOT / "devices").glob("*.py") if path.stem != "__init__"
)


def _modules_after(code: str) -> set[str]:
    """The names in ``sys.modules`` of a fresh interpreter that ran ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_every_descriptor_leaves_torch_out() -> None:
    assert "devices.cpu.descriptor" in _DESCRIPTORS
    code = "\n".join(f"import {name}" for name in _DESCRIPTORS)
    assert "torch" not in _modules_after(code)


def test_importing_every_module_of_devices_leaves_torch_and_the_other_packages_out() -> None:
    modules = _modules_after("\n".join(f"import {name}" for name in _ROOM))
    assert not modules & {"torch", "conformance", "opinfo", "reports", "pytest"}


def test_finding_the_devices_and_reading_the_cpu_s_facts_leaves_torch_out() -> None:
    modules = _modules_after("from devices import registry\nregistry.get('cpu').facts()")
    assert "torch" not in modules
