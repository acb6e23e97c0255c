"""Keeps, between judgements, what the CPU and FakeTensor answered about the calls of an op of torch. The answers do not
depend on the kernel, and computing them takes longer than judging a kernel with them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from conformance.kernels.request import Request
from devices.files import cache_root, file_name, write_whole
from opinfo.axes.acceptance_cache import present_folder


class FindingsCache:
    """The kept answers for the calls on which the kernel of a request is judged. Nothing is kept for a kernel with a
    reference, because the code of a reference may change."""

    def __init__(self, request: Request) -> None:
        self.folder = _folder(request) if request.target else None

    def load(self, findings: Path) -> None:
        """Copies the kept answers to the folder of a judgement."""
        for path in _files(self.folder):
            assert self.folder is not None
            copy = findings / path.relative_to(self.folder)
            with suppress(
                OSError
            ):  # another process has just removed the file: it is computed again
                content = path.read_bytes()
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)

    def save(self, findings: Path) -> None:
        """Keeps the answers in the folder of a judgement. Call it only if no kernel has run since the judge wrote them.
        If the cache cannot be written, the next judgement computes the answers again."""
        if self.folder is None:
            return
        for path in _files(findings):
            kept, content = self.folder / path.relative_to(findings), path.read_bytes()
            with suppress(OSError):
                if not kept.is_file() or kept.read_bytes() != content:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(kept, content)


def _files(folder: Path | None) -> list[Path]:
    return [] if folder is None else sorted(path for path in folder.rglob("*") if path.is_file())


def _folder(request: Request) -> Path:
    """Returns the folder of the answers about an op. The answers are kept in the order of the questions, which depends
    on the modules that choose the calls, in addition to what the cache of plans depends on."""
    facts = hashlib.blake2b(digest_size=12)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        facts.update(path.read_bytes())
    name = f"kernels-{request.target}{'' if request.layouts else '-contiguous'}"
    return present_folder(cache_root()) / file_name(name) / facts.hexdigest()
