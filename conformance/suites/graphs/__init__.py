"""The graphs suite: cases about capturing work in graphs and replaying the graphs."""

from conformance.checks.cases.cases import OpCheck, Suite, gathered
from conformance.suites.graphs import capture, every_op, programs, replays

SUITE = Suite(
    "graphs",
    cases=gathered(capture.cases, replays.cases, programs.cases),
    op_checks=(OpCheck(every_op.CLAUSE, every_op.applies, (every_op.check,), every_op.untried),),
)
