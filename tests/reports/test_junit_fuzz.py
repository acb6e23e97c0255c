"""Whatever becomes of a run's files: refused with one clear error, or read as what they say; never wrongly green.

The files are changed and signed again, as someone would who wants the gate to open.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cell import Outcome, Verdict
from reports.gate import gate
from reports.judgement import ExitCode
from reports.plan import RunError
from reports.run import load_run, write_run
from tests.fuzzing import examples
from tests.reports import independent
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    passed,
    plan_document,
    results,
    sign,
)

LAYOUT = "junit-layout.xml"
EXPECTED = failed(ADD_INT, Verdict.EXPECTED)
RUNS = {
    "green": results(EXPECTED, passed(CONV, why="π & <b>")),
    "regression": results(failed(ADD), EXPECTED),
    "improvement": results(passed(ADD, verdict=Verdict.IMPROVEMENT), EXPECTED),
    "crash": results(failed(BOUNDS, outcome=Outcome.CRASH, layouts=())),
    "provisional": results(failed(QUERY, layouts=())),
    "missing": {key: each for key, each in results(EXPECTED).items() if key != CONV},
}
GREEN = {"green", "provisional"}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder a run, which no test changes, and one to change."""
    base = tmp_path_factory.mktemp("runs")
    for name, made in RUNS.items():
        write_run(base / name, plan_document(), made, PROVENANCE)
    (base / "scratch").mkdir()
    return base


def fresh(folders: Path, name: str) -> Path:
    for path in (folders / name).iterdir():
        shutil.copyfile(path, folders / "scratch" / path.name)
    return folders / "scratch"


def judge_as_others_would(folder: Path) -> str:
    """Load and gate; hold what comes out against an independent reading of the same files."""
    try:
        run = load_run(folder)
        result = gate(run)
    except RunError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        assert error.exit_code == 4
        return "refused"
    told = independent.read(folder)
    assert set(told) <= set(run.parsed.cells)
    for key, cases in told.items():
        assert len(cases) == 1, key
        assert independent.same(run.results.get(key), cases[0]), key
    if result.exit_code is ExitCode.GREEN:
        assert independent.green(folder)
    return result.exit_code.label


@pytest.mark.parametrize("name", RUNS)
def test_the_independent_reading_agrees_on_what_was_not_changed(folders: Path, name: str) -> None:
    said = judge_as_others_would(fresh(folders, name))
    assert (said == "green") == (name in GREEN) == independent.green(folders / name)


_FILES = st.sampled_from([LAYOUT, "junit-streams.xml", "plan.json"])
_BYTES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [
            b"pass", b"fail", b"ok", b"expected", b"skipped", b"failure", b"<", b">", b"&amp;", b"\"", b"0", b"1",
            b"<!-- -->", b"<![CDATA[", b"]]>", b"<?x?>", b"&#0;", b"\xff", b"\xef\xbb\xbf", b"conform {}", b"true",
        ]
    ),
)  # fmt: skip


@examples(300)
@given(st.sampled_from(sorted(RUNS)), _FILES, st.data())
def test_changed_bytes(folders: Path, name: str, file: str, data: st.DataObject) -> None:
    folder = fresh(folders, name)
    content = (folder / file).read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 12))
        content = content[:at] + data.draw(_BYTES) + content[at + cut :]
    (folder / file).write_bytes(content)
    if file != "plan.json":
        sign(folder)
    said = judge_as_others_would(folder)
    if said == "green":
        assert name in GREEN


@examples(100)
@given(_FILES, st.binary(max_size=300))
def test_any_bytes_in_a_file_s_place_are_refused(folders: Path, file: str, content: bytes) -> None:
    folder = fresh(folders, "green")
    (folder / file).write_bytes(content)
    if file != "plan.json":
        sign(folder)
    assert judge_as_others_would(folder) == "refused"


@examples(200)
@given(st.sampled_from(sorted(RUNS)), st.data())
def test_a_changed_plan_is_refused_or_the_same(
    folders: Path, name: str, data: st.DataObject
) -> None:
    folder = fresh(folders, name)
    before = load_run(folder)
    document = json.loads((folder / "plan.json").read_text())
    part: Any = document
    while True:
        keys = sorted(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(part[key], (dict, list)) or not part[key] or data.draw(st.booleans()):
            break
        part = part[key]
    if data.draw(st.booleans()):
        part[key] = data.draw(
            st.sampled_from([True, False, None, 0, "", "planned", "checked", [], {}, "1/2"])
        )
    else:
        del part[key]
    (folder / "plan.json").write_text(json.dumps(document))
    if judge_as_others_would(folder) == "refused":
        return
    after = load_run(folder)
    assert (after.plan, after.results) == (before.plan, before.results)


# Changes of the tree, by someone who knows the form

_VALUES = {
    "outcome": st.sampled_from([*(each.value for each in Outcome), "fine", 1]),
    "verdict": st.sampled_from([*(each.value for each in Verdict), "", None]),
    "checks": st.sampled_from([0, 1, -1, 10**30, 1.5, "3", True, None]),
    "layouts": st.sampled_from([[], ["transposed"], ["nowhere"], "transposed", [1]]),
    "ran": st.sampled_from([-1, 0, 1, 99, "0"]),
    "worst_error": st.sampled_from([0.5, "nan", "inf", "much", -1, None]),
    "raises": st.sampled_from(["RuntimeError", "", None, 3]),
    "message": st.sampled_from(["values differ", "\ud800", "\n", "conform {}", 0]),
    "why": st.sampled_from(["", "because", None]),
    "repro": st.sampled_from(["repro/1.py", "../../etc/passwd", "/etc/passwd", "C:\\x", ""]),
    "seconds": st.sampled_from([1.0, -1.0, "nan", "inf", "soon"]),
    "waived": st.just(True),
}
_TYPES = st.sampled_from(["regression", "improvement", "expected", "flaky", "missing", "error", ""])


def _change_details(case: Element, data: st.DataObject) -> None:
    out = case.find("system-out")
    if out is None or not (out.text or "").startswith("conform {"):
        return  # an earlier change made it something else
    head, newline, rest = (out.text or "").partition("\n")
    details = json.loads(head.removeprefix("conform "))
    field = data.draw(st.sampled_from(sorted(_VALUES)))
    if data.draw(st.booleans()):
        details[field] = data.draw(_VALUES[field])
    else:
        details.pop(field, None)
    out.text = f"conform {json.dumps(details)}{newline}{rest}"


def _make_pass(case: Element, data: st.DataObject) -> None:
    """A careful forgery of one cell: element, outcome and verdict agree."""
    for each in list(case):
        if each.tag != "system-out":
            case.remove(each)
    out = case.find("system-out")
    if out is None:
        out = ElementTree.SubElement(case, "system-out")
        case.set("time", "0.5")
    out.text = "conform " + json.dumps({"checks": data.draw(st.sampled_from([0, 1, 12]))})


def _change_element(case: Element, data: st.DataObject) -> None:
    tags = st.sampled_from(["failure", "error", "skipped", "rerun", "system-out"])
    told = [each for each in case if each.tag != "system-out"]
    what = data.draw(st.sampled_from(["add", "remove", "retag"]))
    if what == "add":
        case.insert(0, Element(data.draw(tags), type=data.draw(_TYPES)))
    for each in told:
        if what == "remove":
            case.remove(each)
        elif what == "retag":
            each.tag = data.draw(tags)
            each.set("type", data.draw(_TYPES))


def _swap_details(suite: Element, case: Element, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from(suite.findall("testcase")))
    case[:], other[:] = list(other), list(case)


def _rename(case: Element, data: st.DataObject) -> None:
    cell = data.draw(st.sampled_from(CELLS))
    case.set("name", f"{cell.op}[{cell.dtype}]" if cell.dtype else cell.op)
    case.set("classname", cell.clause)


def _change_tree(root: Element, data: st.DataObject) -> None:
    suite = root[0]
    cases = suite.findall("testcase")
    case = data.draw(st.sampled_from(cases)) if cases else Element("testcase")
    what = data.draw(
        st.sampled_from(
            ["details", "pass", "element", "swap", "rename", "drop", "double", "reorder", "header", "property"]
        )
    )  # fmt: skip
    if what == "details":
        _change_details(case, data)
    elif what == "pass":
        _make_pass(case, data)
    elif what == "element":
        _change_element(case, data)
    elif what == "swap" and cases:
        _swap_details(suite, case, data)
    elif what == "rename":
        _rename(case, data)
    elif what == "drop" and cases:
        suite.remove(case)
    elif what == "double":
        suite.append(case)
    elif what == "reorder" and cases:
        suite.remove(case)
        suite.append(case)
    elif what == "header":
        header = data.draw(st.sampled_from([root, suite]))
        name = data.draw(
            st.sampled_from(["tests", "failures", "errors", "skipped", "name", "extra"])
        )
        header.set(name, data.draw(st.sampled_from(["0", "1", "4", "", "layout"])))
    elif what == "property":
        each = data.draw(st.sampled_from(list(suite.iter("property"))))
        each.set(
            "value",
            data.draw(st.sampled_from(["", "false", "true", "[]", '[["transposed"]]', "1/4"])),
        )


def _count_again(root: Element) -> None:
    suite = root[0]
    counts: dict[str, Any] = {"tests": len(suite.findall("testcase"))}
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        counts[name] = sum(case.find(tag) is not None for case in suite.findall("testcase"))
    for name, count in counts.items():
        suite.set(name, str(count))
        if name != "skipped":
            root.set(name, str(count))


@examples(300)
@given(st.sampled_from(sorted(RUNS)), st.sampled_from([LAYOUT, "junit-streams.xml"]), st.data())
def test_a_changed_tree(folders: Path, name: str, file: str, data: st.DataObject) -> None:
    folder = fresh(folders, name)
    tree = ElementTree.parse(folder / file)
    root = tree.getroot()
    for _ in range(data.draw(st.integers(1, 3))):
        _change_tree(root, data)
    if data.draw(st.booleans()):
        _count_again(root)
    try:
        tree.write(folder / file, encoding="utf-8", xml_declaration=True)
    except (UnicodeEncodeError, ValueError):
        return  # a lone surrogate, which no XML can hold
    sign(folder)
    judge_as_others_would(folder)


def test_a_careful_forgery_of_every_red_cell_is_what_it_takes(folders: Path) -> None:
    # What is read is what the files say. That these are the ones a run wrote is for CI to see to.
    folder = fresh(folders, "regression")
    tree = ElementTree.parse(folder / LAYOUT)
    for case in tree.getroot().iter("testcase"):
        if case.find("failure") is not None:
            case.remove(case[0])
            case[0].text = 'conform {"checks":12}'
    _count_again(tree.getroot())
    tree.write(folder / LAYOUT, encoding="utf-8")
    assert judge_as_others_would(folder) == "refused"  # the sum of the file is another
    sign(folder)
    assert judge_as_others_would(folder) == "green"
