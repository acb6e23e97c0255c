"""A trace folder of FlashInfer-Bench. Each solution is judged on the workloads of its definition, and the verdict is
written to ``traces/`` as an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from conformance.kernels.data.flashinfer import (
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    Solution,
    Trace,
)
from conformance.kernels.formats import NoKernel, Wanted
from conformance.kernels.forms.flashinfer import definition_of, workloads_in
from conformance.kernels.judgement import Judgement, Verdict
from conformance.kernels.request import Request, Source
from devices.failure import Failure, Kind

#: The status of a failure by its kind; others are numerical.
_STATUS: Final = {
    Kind.SHAPE: "INCORRECT_SHAPE",
    Kind.COUNT: "INCORRECT_SHAPE",
    Kind.DTYPE: "INCORRECT_DTYPE",
    Kind.RAISED: "RUNTIME_ERROR",
    Kind.ENDED: "RUNTIME_ERROR",
}


def takes(path: Path) -> bool:
    """Returns True for a folder that contains the folders ``definitions`` and ``solutions``."""
    return (path / "definitions").is_dir() and (path / "solutions").is_dir()


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns a request for each solution. Raises NoKernel if the definition or the workloads of a solution are
    missing, or if a file is damaged."""
    definitions = {each.stem: each for each in (path / "definitions").rglob("*.json")}
    workloads = {each.stem: each for each in (path / "workloads").rglob("*.jsonl")}
    found = []
    for file in sorted((path / "solutions").rglob("*.json")):
        solution = _read(file, Solution)
        name = solution.definition
        if name not in definitions or name not in workloads:
            raise NoKernel(
                f"{file}: expected a definition and workloads of '{name}' in the folder, found none"
            )
        definition = _read(definitions[name], Definition)
        floating = [each.dtype for each in definition.inputs.values() if "float" in each.dtype]
        request = wanted.request(
            kernel=Source(str(file.resolve()), solution.name),
            form="flashinfer",
            reference=Source(str(definitions[name].resolve()), name),
            samples=Source(str(workloads[name].resolve()), ""),
            name=solution.name,
            strides=False,
            layouts=False,
            shapes=False,
        )
        dtypes = tuple(dict.fromkeys(floating))[:1] or ("float32",)
        found.append(msgspec.structs.replace(request, dtypes=dtypes))
    return found


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    """Appends a trace for each workload of each judged solution to the files in ``traces/``. Returns the paths of these
    files."""
    written: dict[Path, None] = {}
    for request, judgement in judged:
        if judgement.verdict is Verdict.NOT_JUDGED or request.samples is None:
            continue
        definition = definition_of(request)
        file = path / "traces" / definition.op_type / f"{definition.name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        evaluation = evaluation_of(judgement)
        with file.open("ab") as stream:
            for line, _ in workloads_in(Path(request.samples.path)):
                trace = Trace(definition.name, line.workload, request.kernel.name, evaluation)
                stream.write(msgspec.json.encode(trace) + b"\n")
        written[file] = None
    return [*written]


def evaluation_of(judgement: Judgement) -> Evaluation:
    """Returns the evaluation in FlashInfer-Bench's format that corresponds to a judgement."""
    shown = judgement.smallest
    failure = shown.failure if shown is not None else None
    where = failure.where if failure is not None else None
    speed = judgement.speed
    performance = None
    if speed is not None:
        times = speed.kernel_us / 1000, speed.replaced_us / 1000
        performance = Performance(*times, speed.ratio)
    correctness = Correctness(
        (where.relative if where is not None else None) or 0.0,
        (where.error if where is not None else None) or 0.0,
        {"torch_conformance": _summary(judgement)},
    )
    return Evaluation(
        status=status_of(judgement, failure),
        environment=Environment(judgement.device, {"torch": str(torch.__version__)}),
        timestamp=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        log="\n".join(f"{each.check}: {each.message}" for each in judgement.faults),
        correctness=correctness,
        performance=performance,
    )


def status_of(judgement: Judgement, failure: Failure | None) -> str:
    """Returns the status of FlashInfer-Bench that is closest to a judgement."""
    if judgement.right:
        return "PASSED"
    if failure is None:
        loads = any(each.check == "kernel.load" for each in judgement.faults)
        return "COMPILE_ERROR" if loads else "RUNTIME_ERROR"
    return _STATUS.get(failure.kind, "INCORRECT_NUMERICAL")


def _summary(judgement: Judgement) -> dict[str, Any]:
    return {
        "verdict": str(judgement.verdict),
        "comparisons": judgement.comparisons,
        "calls": judgement.calls,
        "faults": [{"check": f.check, "message": f.message} for f in judgement.faults],
    }


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise NoKernel(f"{path}: {error}") from None
