"""The command ``conform kernels``, which judges single kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from conformance.commands import options, print_json
from devices.errors import ConformError
from devices.files import file_name, write_whole
from devices.torch_version import require_torch
from reports.gate import ExitCode, number

if TYPE_CHECKING:
    from conformance.kernels.judgement import Fault, Judgement, Speed

#: The most faults of a kernel that are printed.
_SHOWN = 4


@click.command()
@click.argument("path")
@options("kernels")
def kernels(path: str, output: Path | None, as_json: bool, **given: Any) -> int:
    """Judge kernels: functions, custom ops, overrides of aten ops, KernelBench models, FlashInfer-Bench solutions.

    PATH is a file, a folder, or one kernel: FILE.py:FUNCTION with --as or --reference. Each kernel runs in its own
    process; other processes compute the expected values and compare the results. Exits 0 if all kernels are right, 1 if
    one is wrong, 2 if one could not be judged.
    """
    require_torch()
    from conformance.kernels.judge import judged

    folder = output or Path("conform-results") / "kernels"
    found: list[tuple[Any, Judgement]] = []
    for path_of, format_, requests in _requests(path, **given):
        mine = []
        for request in requests:
            judgement = judged(request)
            mine.append((request, judgement))
            scripts = _write_scripts(folder, judgement)
            if not as_json:
                click.echo("\n".join(_lines(judgement, scripts)))
        for written in format_.record(path_of, mine) if format_ is not None else ():
            click.echo(f"verdicts: {written}", err=as_json)
        found += mine
    judgements = [each for _, each in found]
    if as_json:
        print_json(judgements)
    else:
        right = sum(each.right for each in judgements)
        click.echo(f"{right} of {number(len(judgements), 'kernel')} right")
    return _exit_code(judgements)


def _exit_code(judgements: list[Judgement]) -> int:
    verdicts = {str(each.verdict) for each in judgements}
    if "wrong" in verdicts:
        return ExitCode.REGRESSION
    return ExitCode.INCOMPLETE if "not judged" in verdicts else ExitCode.GREEN


def _requests(
    path: str,
    target: str | None,
    reference: str | None,
    samples: str | None,
    device: str | None,
    descriptor: Path | None,
    dtypes: str | None,
    seconds: float,
    no_speed: bool,
    no_guard_pages: bool,
) -> Iterator[tuple[Path, Any, list[Any]]]:
    """Yields each file or folder with kernels, the module of its format, and the requests for its kernels. Raises
    ConformError if no kernel is found."""
    from conformance.kernels import formats
    from conformance.kernels.formats import named_function
    from conformance.plan.selection import find_descriptor

    place = descriptor.absolute() if descriptor is not None else None
    wanted = formats.Wanted(
        target=target or "",
        reference=reference or "",
        samples=samples or "",
        device=find_descriptor(device, place).name,
        descriptor=str(place) if place else None,
        dtypes=tuple(filter(None, map(str.strip, (dtypes or "float32").split(",")))),
        seconds=seconds,
        guard_pages=not no_guard_pages,
        speed=not no_speed,
    )
    where, name = named_function.split(path)
    if not where.exists():
        raise formats.NoKernel(f"{where}: expected a file or a folder, found nothing")
    if name:
        yield where, None, [named_function.request(where, name, wanted)]
        return
    found = formats.format_of(where)
    inside = [where] if found is not None or where.is_file() else sorted(where.glob("*.py"))
    some = False
    for each in inside:
        format_ = formats.format_of(each)
        if format_ is None:
            continue
        requests = format_.requests(each, wanted)
        some = some or bool(requests)
        yield each, format_, requests
    if not some:
        example = _example(where)
        raise formats.NoKernel(
            f"{where}: found no kernel. Expected a module that overrides aten ops with "
            "torch.library, a file with Model and ModelNew, a file with reference and samples, a "
            "folder of such files, a folder of BackendBench or FlashInfer-Bench, or "
            f"FILE.py:FUNCTION with --as or --reference{example}"
        )


def _example(path: Path) -> str:
    """Returns an example of how to name a function of a file; an empty string if the file defines none."""
    from conformance.kernels.formats.python_file import functions_in

    names = [each for each in functions_in(path) if not each.startswith("_")]
    return f", for example {path}:{names[0]} --as OP" if names else ""


# -- what is printed


def _lines(judgement: Judgement, scripts: dict[int, Path]) -> Iterator[str]:
    about = f"{judgement.kernel} ({judgement.replaces})"
    checked = f"{number(judgement.comparisons, 'comparison')} in {number(judgement.calls, 'call')}"
    if judgement.right:
        speed = f"; {_speed(judgement.speed, judgement.replaces)}" if judgement.speed else ""
        yield f"right: {about}: {checked}{speed}"
    elif judgement.faults:
        yield f"wrong: {about}: {number(len(judgement.faults), 'check')} failed; {checked}"
        shown = sorted(judgement.faults, key=lambda each: not each.failure)
        for fault in shown[:_SHOWN]:
            yield from _fault(fault, scripts.get(judgement.faults.index(fault)))
        if len(shown) > _SHOWN:
            yield f"    and {', '.join(each.check for each in shown[_SHOWN:])}"
    else:
        yield f"not judged: {about}: {judgement.why}"
    for note in judgement.notes:
        yield f"    note: {note}"


def _fault(fault: Fault, script: Path | None) -> Iterator[str]:
    dtype = f"[{fault.dtype}]" if fault.dtype else ""
    yield f"    {fault.check}{dtype}: {_short(fault.message)}"
    failure = fault.failure
    if failure is not None and failure.inputs:
        tensors = ", ".join(f"t[{n}] {each}" for n, each in enumerate(failure.inputs))
        yield f"        {failure.call}  with {tensors}"
    if script is not None:
        yield f"        python {script}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:299]}…"


def _speed(speed: Speed, replaces: str) -> str:
    return (
        f"{speed.kernel_us:,.1f} us per call, {replaces} {speed.replaced_us:,.1f} us "
        f"({speed.ratio:.2f} x), on {speed.call}"
    )


def _write_scripts(folder: Path, judgement: Judgement) -> dict[int, Path]:
    """Writes the repro scripts of a kernel to a folder. Returns their paths by the index of the fault."""
    found = {}
    for place, fault in enumerate(judgement.faults):
        if fault.script:
            name = f"{fault.check}-{fault.dtype}.py" if fault.dtype else f"{fault.check}.py"
            path = folder / file_name(judgement.kernel) / name
            try:
                write_whole(path, fault.script)
            except OSError as error:
                raise ConformError(f"{path}: {error.strerror or error}") from None
            found[place] = path
    if judgement.faults:
        stripped = msgspec.structs.replace(
            judgement,
            faults=tuple(msgspec.structs.replace(each, script="") for each in judgement.faults),
        )
        write_whole(
            folder / file_name(judgement.kernel) / "judgement.json", msgspec.json.encode(stripped)
        )
    return found
