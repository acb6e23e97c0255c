"""Where a run's results come from: plan, suite, torch, machine, manifest."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from conformance.version import VERSION
from opinfo.samples import SEED
from reports.run import Provenance

if TYPE_CHECKING:
    from conformance.session import Session


def provenance_of(session: Session, partial: bool) -> Provenance:
    """Where a session's results come from."""
    manifest = session.expectations.read_bytes() if session.expectations else b""
    cache = "off"
    if session.request.reference_cache:
        cache = "cold" if session.missed * 2 > session.asked else "warm"
    return Provenance(
        plan_hash=session.plan.hash,
        suite_version=VERSION,
        suite_commit=_commit(),
        torch=torch.__version__,
        driver=session.facts.get("driver", ""),
        device_name=session.facts.get("device_name", ""),
        device_uuid="",
        os=session.facts.get("os", ""),
        arch=session.facts.get("arch", ""),
        python=session.facts.get("python", ""),
        seed=SEED,
        manifest_hash=hashlib.blake2b(manifest, digest_size=8).hexdigest() if manifest else "",
        start=session.started.isoformat(timespec="seconds"),
        host=", ".join(dict.fromkeys((platform.node(), *sorted(session.hosts)))),
        shard=session.request.shard or "",
        device=session.plan.device,
        plan=session.plan.spec.name,
        partial=partial,
        expectations=str(session.expectations) if session.expectations else "none",
        reference_cache=cache,
    )


def _commit() -> str:
    """The checkout's commit, empty where the suite is installed."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
