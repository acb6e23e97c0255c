"""What the ``conform manifest`` commands work on: the file, its device, the runs, the planned cells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from conformance.contract import Contract, load
from devices import registry
from devices._text import suggestion
from devices.cell import CellKey
from devices.descriptor import Descriptor, common_facts
from devices.errors import ConformError
from devices.lifecycle.evidence import Evidence
from devices.manifest import Manifest
from devices.pinned import read_pinned
from devices.vocabulary import DTYPES
from opinfo.layouts import covering_set
from reports.evidence import evidence_of
from reports.run import load_run


@dataclass(frozen=True, slots=True)
class Read:
    """A manifest's file: where it is, its text, and what it says."""

    path: Path
    text: str
    manifest: Manifest


@dataclass(slots=True)
class Given:
    """What a command line named. Everything is looked up when it is asked for, and once."""

    path: Path | None
    descriptor: Descriptor | None
    runs: tuple[Path, ...]
    contract: Contract
    recorded: Path | None = None  # the manifest that the first run was judged by
    _evidence: list[Evidence] = field(default_factory=list)

    @classmethod
    def of(
        cls, path: Path | None, device: str | None, descriptor: Path | None, runs: Sequence[Path]
    ) -> Given:
        """Look the device up, and read the runs. Raises ConformError."""
        given = cls(path, None, tuple(runs), load())
        loaded = [load_run(each) for each in runs]
        given._evidence = [
            evidence_of(run, str(each)) for run, each in zip(loaded, runs, strict=True)
        ]
        if loaded and loaded[0].provenance.expectations not in ("", "none"):
            given.recorded = Path(loaded[0].provenance.expectations)
        if descriptor is not None:
            given.descriptor = registry.load_file(descriptor)
        elif device is not None:
            given.descriptor = registry.get(device)
        elif loaded:
            given.descriptor = registry.all_devices().get(loaded[0].provenance.device)
        elif path is None:
            given.descriptor = _machines_own()
        return given

    def read(self, *, may_be_new: bool = False) -> Read:
        """The manifest. Raises ConformError where none is known, or it cannot be read."""
        path = self._path(may_be_new=may_be_new)
        if not path.exists():
            if may_be_new:
                return Read(path, "", Manifest(path=path))
            raise ConformError(
                f"{path}: there is no such manifest yet: `conform manifest update RUN RUN --reason TEXT`"
                " starts one from two runs that agree"
            )
        manifest = self.load(path)
        return Read(path, path.read_bytes().decode("utf-8-sig"), manifest)

    def load(self, path: Path) -> Manifest:
        return Manifest.load(path, set(self.contract.clauses), self._layouts(path))

    def parse(self, text: str, path: Path) -> Manifest:
        return Manifest.parse(text, path, set(self.contract.clauses), self._layouts(path))

    def _layouts(self, path: Path) -> frozenset[str]:
        """The covering set's, and the examples that are pinned beside the manifest or its device."""
        folders = [path.parent, self.descriptor.folder if self.descriptor is not None else None]
        return covering_set().ids | {pin.layout for each in folders for pin in read_pinned(each)}

    def _path(self, *, may_be_new: bool) -> Path:
        if self.path is not None:
            return self.path
        if self.recorded is not None and self.recorded.is_file():
            return self.recorded
        device = self.descriptor
        if device is not None and device.expectations is not None:
            return device.expectations
        if device is not None and device.folder is not None and may_be_new:
            return device.folder / "expected.toml"
        whose = f"device '{device.name}' has no manifest" if device else "no manifest is known"
        raise ConformError(f"{whose}: name the file with --manifest PATH")

    def evidence(self) -> list[Evidence]:
        """The runs, read."""
        return self._evidence

    def facts(self) -> Mapping[str, str]:
        """Those of the first run, else of the device where it is here, else what every machine knows."""
        if self._evidence:
            return self._evidence[0].facts
        if self.descriptor is None or self.descriptor.unavailable() is not None:
            return common_facts()
        return self.descriptor.facts()

    def dtypes(self) -> Collection[str]:
        """The dtypes that the device has; all, where it is not known here."""
        return self.descriptor.dtypes if self.descriptor is not None else DTYPES

    def cells(self, plan: str) -> Iterable[CellKey]:
        """The cells of the runs; without runs those of a plan, made here and now."""
        if self._evidence:
            return dict.fromkeys(key for run in self._evidence for key in run.planned)
        from conformance.planner import make_plan
        from opinfo.device import open_device
        from opinfo.plan import plan_spec

        spec = plan_spec(plan)
        device = self.descriptor or _machines_own()
        if (why := device.unavailable()) is not None:
            raise ConformError(
                f"device {device.name!r} cannot be used here ({why}), so its cells cannot be planned:"
                " give --run RUN"
            )
        click.echo(
            f"planning {plan} on {device.name} (a run's folder is faster: --run RUN)", err=True
        )
        return make_plan(spec, open_device(device), self.contract).cells

    def cell(self, text: str) -> CellKey:
        """A cell as reports write it. Raises ConformError."""
        try:
            key = CellKey.parse(text)
        except ValueError as error:
            raise ConformError(str(error)) from None
        if key.clause not in self.contract.clauses:
            near = suggestion(key.clause, self.contract.clauses)
            raise ConformError(f"unknown clause '{key.clause}'{near}; see `conform contract`")
        return key


def _machines_own() -> Descriptor:
    """The device that a run would take where none is named."""
    import torch

    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    return registry.default_device(accelerator.type if accelerator else None)
