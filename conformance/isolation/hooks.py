"""The hooks of xdist's controller, as a plugin of its own: it is registered where workers run items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
from execnet.gateway_bootstrap import HostNotFound

from conformance.forking.client import ForkServer
from conformance.forking.gateways import start_through
from conformance.isolation.controller import Controller
from devices.errors import ConformError


class Unreachable(ConformError):
    """A worker cannot be started where it was to run."""

    def __init__(self, error: Exception, tx: Sequence[str]) -> None:
        said = f"no host answers at {error}" if isinstance(error, HostNotFound) else str(error)
        super().__init__(
            f"a worker of {', '.join(tx)} cannot be started: {said}. Each --tx must name a host that can be reached, with a Python that "
            "has torch, the suite and the backend"
        )


class XdistHooks:
    """What a run does when a worker starts, ends, or dies. ``stop`` ends the run with one message."""

    def __init__(
        self,
        controller: Controller,
        orders: dict[str, Any],
        stop: Callable[[ConformError], NoReturn],
        collected: Callable[[Any], None],
        server: ForkServer | None,
    ) -> None:
        self._controller, self._orders, self._server = controller, orders, server
        self._stop, self._collected = stop, collected

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        self._controller.watchdog.begin()
        try:
            yield  # xdist starts the workers
        except (HostNotFound, OSError) as error:
            self._stop(Unreachable(error, session.config.option.tx))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)  # … and those that take the places of dead ones
        except (HostNotFound, ConnectionError) as error:
            self._stop(Unreachable(error, session.config.option.tx))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Before the first worker is started."""
        of_xdist: Any = config.pluginmanager.get_plugin("dsession")
        if self._server is not None:
            start_through(self._server, of_xdist.nodemanager.group)

    def pytest_configure_node(self, node: Any) -> None:
        self._controller.configured(node, self._orders)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self._collected(output.get("conform_collected", ()))
        try:
            self._controller.down(node, error)
        except ConformError as given_up:
            self._stop(given_up)

    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Name the cell that the dead worker was in, and have the rest of its item run again."""
        config = report.node.config
        found = self._controller.crashed(crashitem, report.node)
        report.when, report.longrepr = "call", found.text
        report.outcome = "failed" if found.failed else "passed"
        if not found.failed:
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            if reporter is not None and config.option.verbose >= 0:
                reporter.ensure_newline()
                reporter.write_line(f"conformance: {found.text}")
        if found.again:
            sched.mark_test_pending(crashitem)
        if found.failed:
            _count(config)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if any(name == "conform" for name, _ in report.user_properties):
            self._controller.progress()

    def pytest_unconfigure(self) -> None:
        self._controller.watchdog.end()


def _count(config: Any) -> None:
    """A crash counts for ``-x`` and ``--maxfail``, as a failure does: xdist counts reports of workers alone."""
    session = config.pluginmanager.get_plugin("dsession")
    if session is None:
        return
    session.countfailures += 1
    if session.maxfail and session.countfailures >= session.maxfail and not session.shouldstop:
        session.shouldstop = f"stopping after {session.countfailures} failures"
