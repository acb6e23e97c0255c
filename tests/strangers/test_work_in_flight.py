"""What `conform init` drafts for a device that offers nothing to keep a stream busy lets the suite check work in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.onboarding import drafting
from conformance.onboarding.init import _work_in_flight
from conformance.onboarding.questions import Question, Reply, ask
from devices.cell import Outcome
from devices.registry import load_file
from tests.plugin.running import ForkServer, cells_of
from tests.strangers.bench import MODULES

#: Each draft is measured for some seconds, and without a gate each hold lasts its whole time.
pytestmark = pytest.mark.slow

NATIVE = Question(name="mynative", torch_type="simulated", module="strange_native")
_DECLARED = "    busy=_busy,\n"


def asked(question: Question, fault: str = "") -> Reply:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(MODULES))
        patch.setenv("SIMULATED_FAULTS", fault)
        return ask(question)


@pytest.fixture(scope="module")
def draft() -> str:
    """The descriptor that is drafted for a sound device. On a machine with many other programs the time of the work varies
    so much that the draft is refused at times."""
    for _ in range(3):
        reply = asked(NATIVE)
        if any(each.works for each in reply.busy):
            break
    return drafting.descriptor(NATIVE, reply)


def outcomes(
    text: str, folder: Path, fork: ForkServer, clause: str, fault: str = ""
) -> dict[str, Outcome]:
    """The outcomes of the cells of a clause, by name, with a planted fault."""
    folder.mkdir()
    (folder / "descriptor.py").write_text(text, encoding="utf-8")
    fork.pytest(
        "-q",
        f"--clauses={clause}",
        "--expectations=none",
        f"--descriptor={folder}",
        f"--results={folder / 'results'}",
        PYTHONPATH=str(MODULES),
        SIMULATED_FAULTS=fault,
    )
    return {key.unit: each.outcome for key, each in cells_of(folder / "results").items()}


@pytest.mark.parametrize(
    ("clause", "fault", "case"),
    [
        ("streams.synchronize", "streams.synchronize_returns_early", "of_that_index"),
        ("events.record", "events.record_late", "later_work_is_not_in_it"),
    ],
)
def test_work_in_flight_is_checked_with_the_drafted_busy(
    draft: str, clause: str, fault: str, case: str, tmp_path: Path, fork: ForkServer
) -> None:
    without = draft.replace(_DECLARED, "")
    assert outcomes(without, tmp_path / "unseen", fork, clause, fault)[case] is Outcome.UNSUPPORTED
    assert outcomes(draft, tmp_path / "seen", fork, clause, fault)[case] is Outcome.FAIL
    sound = outcomes(draft, tmp_path / "sound", fork, clause)
    assert sound[case] is Outcome.PASS
    assert set(sound.values()) <= {Outcome.PASS, Outcome.UNSUPPORTED}


def test_a_repro_script_contains_the_drafted_busy(
    draft: str, tmp_path: Path, fork: ForkServer
) -> None:
    fault = "streams.synchronize_returns_early"
    outcomes(draft, tmp_path / "seen", fork, "streams.synchronize", fault)
    script = tmp_path / "seen/results/repro/streams.synchronize/of_that_index.py"
    about = {"PYTHONPATH": str(MODULES)}
    assert fork.script(script, SIMULATED_FAULTS=fault, **about).code == 1
    assert fork.script(script, SIMULATED_FAULTS="", **about).code == 0


def test_a_device_whose_streams_are_wrong_gets_a_comment(tmp_path: Path) -> None:
    reply = asked(NATIVE, "streams.query_always_true")
    text = drafting.descriptor(NATIVE, reply)
    (tmp_path / "descriptor.py").write_text(text, encoding="utf-8")
    assert "# def _busy(milliseconds: float) -> None:" in text
    assert load_file(tmp_path).busy is None
    first, second = _work_in_flight(NATIVE, reply)
    assert "query() of the stream was True after" in first and "as a comment" in second


def test_a_draft_that_hangs_is_ended_and_the_next_one_is_tried() -> None:
    reply = asked(Question(name="x", torch_type="simulated", module="strange_hanging_sleep"))
    first, *_, last = reply.busy
    assert (first.candidate, first.works) == ("sleep", False)
    assert first.found == "the probe gave no answer within 20 s"
    assert last.candidate == "matrix_product"
