"""One function or custom op that the user names: ``file.py:function`` or ``file.py:namespace::op``."""

from __future__ import annotations

from pathlib import Path

from conformance.kernels.formats import Wanted
from conformance.kernels.formats.python_file import Unreadable, names_in
from conformance.kernels.forms import CUSTOM_OP
from conformance.kernels.request import FUNCTION, Request, Source
from devices.errors import suggestion


def split(text: str) -> tuple[Path, str]:
    """Splits ``file.py:name`` into the path and the name. The name is an empty string if the text has none."""
    head, colon, name = text.partition(".py:")
    return (Path(f"{head}.py"), name) if colon else (Path(text), "")


def request(path: Path, name: str, wanted: Wanted) -> Request:
    """Returns the request for one named kernel. Raises Unreadable if the file does not define the name, or unless
    exactly one of --as and --reference was given."""
    form = CUSTOM_OP if "::" in name else FUNCTION
    if bool(wanted.target) == bool(wanted.reference):
        raise Unreadable(
            f"{path}:{name}: expected either --as OP, the op that the kernel replaces, or "
            "--reference FUNCTION, which computes the right results"
        )
    reference = _source(path, wanted.reference) if wanted.reference else None
    samples = _source(path, wanted.samples or "samples") if reference else None
    return wanted.request(
        kernel=_source(path, name),
        form=form,
        target=wanted.target,
        reference=reference,
        samples=samples,
        name=name,
        strides=bool(wanted.target),
    )


def _source(path: Path, text: str) -> Source:
    """Returns the source of a function, which is given as a name in the kernel's file or as ``file.py:name``. Raises
    Unreadable if the file does not define the name."""
    other, name = split(text) if ".py:" in text else (path, text)
    known = names_in(other)
    if "::" not in name and name not in known:
        raise Unreadable(f"{other} does not define '{name}'{suggestion(name, known)}")
    return Source(str(other.resolve()), name)
