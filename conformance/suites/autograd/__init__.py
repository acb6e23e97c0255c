"""The autograd suite: gradients are right, and stale ones are refused."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.autograd import functions, saved, threads, versions

SUITE = Suite(
    "autograd", cases=gathered(saved.cases, versions.cases, threads.cases, functions.cases)
)
