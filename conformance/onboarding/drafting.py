"""The files that `conform init` writes, as texts: descriptor.py and expected.toml. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final

from conformance.onboarding.questions import Question, Reply
from devices.cell import CellKey, Outcome
from devices.descriptor import CAPABILITIES, FACTS
from reports.model import CellResult

#: Outcomes that a block may expect. Cells that could not be checked cannot be expected.
EXPECTABLE: Final = frozenset({Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.UNSUPPORTED})

#: A block begins with this word until a person has found its cause.
TRIAGE: Final = "triage:"

_DESCRIPTOR = '''\
"""The device {title}.

Written by `conform init` on {day} from what the device answered. Check each statement: that something works
once does not mean that you support it, and the device may support what it was not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance import Descriptor, common_facts


def _unavailable() -> str | None:
    """None if the device can be used, else one line that says why not. It must not import torch."""
    return {unavailable}


def _facts() -> Mapping[str, str]:
    """Facts for a manifest's `when`. Add: {facts_to_add}."""
{facts}

DESCRIPTOR = Descriptor(
    name={name},
    torch_type={torch_type},
    title={title_text},
    sources=(),  # headers and pages that the statements below come from
{module}\
    # These work. {unasked_note}
    capabilities={capabilities},
    # Tensors of these can be allocated and converted to and from float32.
    dtypes=frozenset(
        {{
{dtypes}\
        }}
    ),
    tolerances={{}},  # {{"float16": Tolerance(rtol=2e-3, atol=1e-5)}} overrides the defaults
    alignment=64,  # bytes, of the start of an allocation: check
    workers_per_device=1,  # processes that may share one device: check
    facts=_facts,
    unavailable=_unavailable,
{device_count}\
)
'''


def descriptor(name: str, question: Question, reply: Reply, day: date | None = None) -> str:
    """The descriptor.py of a device that answered."""
    has = [cap for cap in CAPABILITIES if reply.capabilities.get(cap)]
    unasked = [cap for cap in CAPABILITIES if reply.capabilities.get(cap) is None]
    missing = [fact for fact in FACTS if fact not in reply.facts]
    lines = ["    facts = dict(common_facts())"]
    if "device_name" in reply.facts:
        lines += [
            "    import torch  # here, because listing devices must not import torch",
            "",
            f"    module = torch.get_device_module({question.torch_type!r})",
            '    facts["device_name"] = str(module.get_device_name(0))',
        ]
    lines.append("    return facts\n")
    counts = reply.device_count > 1
    if counts:
        lines += [
            "",
            "def _count() -> int:",
            "    import torch  # here, because listing devices must not import torch",
            "",
            f"    return int(torch.get_device_module({question.torch_type!r}).device_count())\n",
        ]
    module = ""
    if question.module:
        module = f"    module={json.dumps(question.module)},\n"
        if question.init:
            module += f"    init={json.dumps(question.init)},\n"
    top = question.module.partition(".")[0]
    unavailable = "None"
    if top and top != "torch":
        unavailable = f"None if importlib.util.find_spec({top!r}) else {f'the module {top} is not installed'!r}"
    listed = "".join(f"            {json.dumps(cap)},\n" for cap in has)
    text = _DESCRIPTOR.format(
        title=name,
        day=(day or date.today()).isoformat(),
        name=json.dumps(name),
        title_text=json.dumps(reply.facts.get("device_name", name)),
        torch_type=json.dumps(question.torch_type),
        module=module,
        unavailable=unavailable,
        facts="\n".join(lines),
        facts_to_add=", ".join(missing) or "nothing",
        unasked_note="Not asked; declare them if the device supports them:\n"
        + "\n".join(_comment(", ".join(unasked))),
        capabilities=f"frozenset(\n        {{\n{listed}        }}\n    )" if has else "frozenset()",
        dtypes="".join(f"            {json.dumps(dtype)},\n" for dtype in reply.dtypes),
        device_count="    device_count=_count,\n" if counts else "",
    )
    if "importlib.util" in unavailable:
        text = text.replace(
            "from collections.abc", "import importlib.util\nfrom collections.abc", 1
        )
    return text


def _comment(text: str, width: int = 92) -> list[str]:
    lines, line = [], "    #"
    for word in text.split():
        if len(line) + len(word) >= width:
            lines.append(line)
            line = "    #"
        line += f" {word}"
    return [*lines, line]


def manifest(
    name: str,
    failing: Iterable[CellResult],
    apart: Mapping[CellKey, str],
    runs: int,
    day: date,
) -> str:
    """The expected.toml for the failing cells, with a block for each clause, outcome, exception and set of failing
    layouts. ``apart`` are cells that no block can describe, with the reason."""
    count = "one run" if runs == 1 else f"{runs} agreeing runs"
    lines = [
        f"# Expected failures of `{name}`, written by `conform init` on {day.isoformat()} from {count} of plan quick.",
        "# Each block is a group of cells that fail in the same way. Find the cause, write it into `reason` and",
        "# `kind`, and split or join blocks until each block has one root cause.",
    ]
    for group in _groups(failing).values():
        lines += ["", *_block(group)]
    if apart:
        lines += ["", "# Not in a block, so the gate stays red until they are explained:"]
        lines += [f"#   {key}: {_plain(why)}" for key, why in apart.items()]
    return "\n".join(lines) + "\n"


def _groups(failing: Iterable[CellResult]) -> dict[object, list[CellResult]]:
    """Cells that fail in the same way. An op's dtypes are part of that: a block is the product of its axes."""
    alike: dict[tuple[tuple[object, ...], str], list[CellResult]] = {}
    for result in failing:
        how: tuple[object, ...] = (
            result.key.clause,
            result.outcome,
            result.layouts,
            result.raises,
        )
        alike.setdefault((how, result.key.op), []).append(result)
    groups: dict[object, list[CellResult]] = {}
    for (how, _op), results in alike.items():
        dtypes = tuple(sorted(result.key.dtype for result in results))
        groups.setdefault((how, dtypes), []).extend(results)
    return groups


def _block(group: list[CellResult]) -> list[str]:
    first = group[0]
    ops = list(dict.fromkeys(result.key.op for result in group))
    dtypes = sorted({result.key.dtype for result in group} - {""})
    lines = ["[[expect]]", f"clause = {_text(first.key.clause)}", f"op = {_texts(ops)}"]
    if dtypes:
        lines.append(f"dtype = {_texts(dtypes)}")
    if first.layouts:
        lines.append(f"layouts = {_texts(first.layouts, always=True)}")
    lines.append(f"outcome = {_text(first.outcome.value)}")
    if first.raises:
        lines.append(f"raises = {_text(first.raises)}")
    kind = "not-implemented" if first.outcome is Outcome.UNSUPPORTED else "device-bug"
    said = _plain(first.message)[:200]
    number = "" if len(ops) == 1 else f"{len(ops)} ops fail in the same way; "
    lines.append(f"kind = {_text(kind)}")
    lines.append(f"reason = {_text(f'{TRIAGE} {number}{first.key.op}: {said}')}")
    return lines


def _plain(text: str) -> str:
    """The text on one line, without characters that a TOML comment or string cannot hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _text(value: str) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _texts(values: Iterable[str], *, always: bool = False) -> str:
    """A list on one line if it fits; a single text is not a list, unless ``always``."""
    parts = [_text(value) for value in values]
    if len(parts) == 1 and not always:
        return parts[0]
    line = f"[{', '.join(parts)}]"
    return line if len(line) <= 88 else "[\n" + "".join(f"  {part},\n" for part in parts) + "]"
