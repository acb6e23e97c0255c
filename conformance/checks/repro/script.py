"""The text of a repro script: first the failure, in a form to be pasted into a bug report, then the check, then copies
of what the check uses.

A script imports only torch, the standard library and the device's module. It exits 1 while the fault is present, and 0 once
the fault is fixed.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Collection, Sequence

import torch

from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import attributes_in
from conformance.checks.repro.statements import Definition, statements_of
from devices.failure import Failure

#: The width of a line, and the most lines of an expected or found value.
_WIDTH, _LINES = 100, 4

_SCRIPT = '''\
"""{head}

Written by torch-conformance on torch {torch}.
Exits 1 while the fault is present, 0 once it is fixed, 2 if the check cannot be made. Needs only torch{needs}.
"""

from __future__ import annotations

{top}


def main():
{main}


# Below: copies of the suite's code that made the check.

{imports}


{carried}


if __name__ == "__main__":
    try:
        {start}
    except Exception:  # nothing was judged
        traceback.print_exc()
        sys.exit(2)
'''


def script_text(
    bundle: Bundle,
    main: Sequence[str],
    *,
    head: str,
    needs: str = "",
    top: str = "",
    above: Collection[Definition] = (),
    below: str = "",
    start: str = "main()",
) -> str:
    """Returns the text of a script. ``head`` has the first lines of its docstring, ``main`` the lines that make and
    judge the check, ``bundle`` the definitions that these lines use, and ``below`` more definitions. The definitions in
    ``above`` come first, after the lines ``top``."""
    bundle.mention(attributes_in(ast.parse("\n".join([*main, below]))))
    imports = {*bundle.imports, "import sys", "import torch", "import traceback"}
    texts = bundle.texts()
    leading = {each.node for definition in above for each in statements_of(definition)}
    first = [top, *(text for node, text in texts.items() if node in leading)]
    rest = [below, *(text for node, text in texts.items() if node not in leading)]
    return _SCRIPT.format(
        head=head,
        torch=torch.__version__,
        needs=needs,
        top="\n\n\n".join(filter(None, first)),
        main=textwrap.indent("\n".join(main), "    "),
        imports="\n".join(sorted(imports, key=_place)),
        carried="\n\n\n".join(filter(None, rest)),
        start=start,
    )


def _place(line: str) -> tuple[bool, bool, str]:
    """Returns the sort key of an import line: the standard library comes first, and ``import`` lines before ``from``
    lines."""
    foreign = line.split()[1].partition(".")[0] not in sys.stdlib_module_names
    return foreign, line.startswith("from"), line


# -- the first lines


def headed(title: str, lines: Sequence[str], failure: Failure | None) -> str:
    """Returns the first lines of the docstring of a script: its title, the snippet, and what was expected and found."""
    shown = [title, ""]
    if lines:
        shown += [f"    {line}".rstrip() for line in lines] + [""]
    if failure is not None:
        shown += [*expected_and_found(failure), ""]
    return "\n".join(map(in_docstring, shown)).rstrip()


def expected_and_found(failure: Failure) -> list[str]:
    """Returns the lines that say what was expected and what was found."""
    if not failure.expected and not failure.found:
        return _wrapped("Found:    ", failure.message)
    rank = "" if failure.rank is None else f"rank {failure.rank}"
    lines = []
    if about := ", ".join(filter(None, (rank, failure.subject))):
        head = "Fault:    " if failure.check == "case" else "Concerns: "
        lines += _wrapped(head, about)
    found = failure.found
    if (where := failure.where) is not None and where.count:
        first = f", the first at {list(where.first)}" if where.first else ""
        found += f"; {where.count} of {where.total} differ{first}"
    lines += _wrapped("Expected: ", failure.expected)
    return lines + _wrapped("Found:    ", "; ".join(filter(None, (found, failure.detail))))


def _wrapped(head: str, text: str) -> list[str]:
    if not text.strip():
        return []
    space = " " * len(head)
    given = {"width": _WIDTH, "max_lines": _LINES, "placeholder": " …"}
    return textwrap.wrap(text, initial_indent=head, subsequent_indent=space, **given)  # type: ignore[arg-type]


def in_docstring(text: str) -> str:
    """Returns a text with its backslashes and triple quotes escaped, so that it can be part of a docstring."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
