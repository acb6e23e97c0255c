"""``--max-time``: the most informative items first, and a run that is never taken for a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.run import load_run
from tests.plugin.running import ForkServer, Ran, run_conform, run_pytest

OPS = "neg,mm,median,tril,copysign"


def order(ran: Ran) -> list[str]:
    """The ops of the items that ran, in order."""
    lines = [line for line in ran.text.splitlines() if "[layout-" in line and "%]" in line]
    return [line.partition("[layout-")[2].partition("-float32]")[0] for line in lines]


def run(fork: ForkServer, folder: Path, *arguments: str) -> Ran:
    base = ("--device", "cpu", "-v", "-n", "0", "--ops", OPS)
    return fork.pytest(*base, f"--results={folder}", *arguments)


@pytest.mark.slow
def test_what_failed_last_time_goes_first(fork: ForkServer, tmp_path: Path) -> None:
    manifest = tmp_path / "expected.toml"
    manifest.write_text(
        '[[expect]]\nclause = "layout.output_strides"\nop = "copysign"\noutcome = "fail"\n'
        'reason = "strides"\n'
    )
    known = f"--expectations={manifest}"
    run(fork, tmp_path / "run", known)
    second = order(run(fork, tmp_path / "run", known, "--max-time", "1h"))
    # median and tril were regressions, copysign is expected to fail, mm and neg pass.
    assert set(second[:2]) == {"median", "tril"} and second[2] == "copysign"
    assert set(second) == set(OPS.split(","))


@pytest.mark.slow
def test_such_a_run_is_partial_even_where_it_came_to_its_end(
    fork: ForkServer, tmp_path: Path, cache: Path
) -> None:
    ran = run(fork, tmp_path / "run", "--max-time", "1h")
    assert ran.code == 0 and "conformance: partial run (" in ran.text
    gate = run_conform("gate", str(tmp_path / "run"), cache=cache)
    assert gate.code == 2 and "a partial run" in gate.text


def test_what_was_not_reached_makes_the_run_incomplete(fork: ForkServer, tmp_path: Path) -> None:
    ran = run(fork, tmp_path / "run", "--max-time", "0.001s")
    assert ran.code == 2 and "have no outcome" in ran.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--minimise", "many"), "--minimise 'many': expected a whole number, 0 or more"),
        (("--explore", "soon"), "--explore 'soon': expected a duration such as 90s, 20m or 1h"),
        (("--explore-seed", "-1"), "--explore-seed '-1': expected a whole number, 0 or more"),
        (("--max-time", "0"), "--max-time '0': expected a duration"),
    ],
)
def test_a_value_that_does_not_fit_is_told_in_one_line(
    fork: ForkServer, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ran = run(fork, tmp_path / "run", *arguments)
    assert ran.code == 4 and says in ran.text and "Traceback" not in ran.text


#: The end of a run, in which somebody presses Ctrl-C.
_INTERRUPTING = """\
import conformance.run.session as session

def interrupted(*given):
    raise KeyboardInterrupt

session.with_examples = interrupted
"""


@pytest.mark.slow
def test_an_interruption_of_the_end_loses_no_outcome(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "interrupting.py").write_text(_INTERRUPTING)
    folder = tmp_path / "run"
    options = (
        "-n",
        "0",
        "--device=cpu",
        "--ops=median",
        "--expectations=none",
        f"--results={folder}",
    )
    ran = run_pytest("-p", "interrupting", *options, cache=cache, PYTHONPATH=str(tmp_path))
    assert ran.code == 1 and "interrupted: the results are written" in ran.text, ran.text
    assert "Traceback" not in ran.text and "INTERNALERROR" not in ran.text
    outcomes = {result.outcome for result in load_run(folder).results.values()}
    assert {"pass", "fail"} <= {str(each) for each in outcomes}
