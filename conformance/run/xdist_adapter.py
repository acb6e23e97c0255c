"""All private names of pytest-xdist that the suite uses: options, workers, its session, its schedulers.

The controller registers ``XdistHooks`` as a plugin of its own if workers run items. A worker uses ``input_of`` and
``report_collected``. ``tests/plugin/test_adapters.py`` pins the names.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import pytest

from conformance.run import execnet_adapter
from conformance.run.fork_client import ForkServer
from conformance.run.isolation.controller import Controller, Node
from conformance.run.pytest_adapter import PYTESTS_OWN, in_process, say
from devices.errors import ConformError

#: Modules that workers import; the fork server imports them first.
PRELOADED: Final = ("pytest", "xdist.remote")
#: The property of a report that holds an item's cells, see ``outcomes.ItemReport``.
REPORT: Final = "conform"
#: This many items take as long as the start of a worker that imports everything itself: 3 s.
ITEMS_OF_A_WORKER: Final = 50
#: Distribution modes of xdist whose schedulers take an item back after its worker died.
SUPPORTED: Final = ("load", "worksteal")


# -- options


def prepare_options(option: Any) -> None:
    """Set the options of xdist so that a crash costs a cell and not the run. Raises ConformError."""
    mode = getattr(option, "dist", "no")
    if mode not in ("no", *SUPPORTED):
        raise ConformError(
            f"--dist {mode}: expected load or worksteal; with {mode}, pytest-xdist loses tests or repeats them for ever "
            "when a worker dies (its issues 742 and 784)"
        )
    if wants_a_worker(option):  # what -n 1 would set
        option.numprocesses, option.dist, option.tx = 1, "load", ["popen"]
    if getattr(option, "maxworkerrestart", "") is None:
        option.maxworkerrestart = str(10**9)  # the controller counts those that die in vain


def wants_a_worker(option: Any) -> bool:
    """Whether a run without ``-n`` gets one worker: not with ``-n 0``, nor with options that need one process."""
    if not hasattr(option, "numprocesses"):  # xdist is disabled
        return False
    given = option.numprocesses is not None or option.tx or option.dist != "no"
    return not (given or in_process(option))


def has_workers(option: Any) -> bool:
    return bool(getattr(option, "tx", None)) and not option.collectonly


def has_workers_here(option: Any) -> bool:
    """Whether some workers are processes of this machine, and the system can pass file descriptors to them."""
    disabled = not hasattr(option, "numprocesses")  # xdist
    if disabled or option.collectonly or not hasattr(socket, "send_fds"):
        return False
    return bool(option.numprocesses) or any("popen" in tx for tx in option.tx)


def limit_workers(option: Any, items: int) -> None:
    """Keep only as many workers as are worth their start."""
    del option.tx[max(1, -(-items // ITEMS_OF_A_WORKER)) :]


# -- in a worker


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def input_of(config: pytest.Config) -> tuple[str, bytes, bytes, Any, list[int]]:
    """A worker's name, its encoded start and orders, and its channel and pipes to the controller."""
    given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    channel = given["conform_channel"]
    pipes = execnet_adapter.pipes_of(channel)
    return given["workerid"], given["conform_start"], given["conform_orders"], channel, pipes


def report_collected(config: pytest.Config, items: Iterable[str]) -> None:
    """Tell the controller which items pytest kept."""
    config.workeroutput["conform_collected"] = list(items)  # type: ignore[attr-defined]


# -- in all processes


def wants_every_phase(config: pytest.Config) -> bool:
    """Whether setup, call and teardown of an item are reported one by one: for debugging in one process, or for a foreign
    plugin, which may wait for setup or teardown, as pytest-rerunfailures and pytest-html do. Known once all plugins are registered. Some plugins are
    only in the controller, which informs its workers."""
    # Code that runs in a worker is in a module that execnet names.
    ours = (PYTESTS_OWN, "xdist.", "__channelexec__", "conformance.", "_hypothesis_pytestplugin")
    hooks = (config.hook.pytest_runtest_logreport, config.hook.pytest_runtest_makereport)
    takers = [taker for hook in hooks for taker in hook.get_hookimpls()]
    others = any(not taker.function.__module__.startswith(ours) for taker in takers)
    return others or in_process(config.option) or _informed(config)


def _informed(config: pytest.Config) -> bool:
    return is_worker(config) and bool(config.workerinput["conform_phases"])  # type: ignore[attr-defined]


# -- in the controller


def worker_of(report: pytest.TestReport) -> str:
    """The name of the worker that made a report; ``main`` without workers."""
    return str(getattr(report, "worker_id", "main"))


def stopped_by_failures(session: pytest.Session) -> bool:
    """Whether ``-x`` or ``--maxfail`` ended the run. With workers, xdist's session counts the failures."""
    of_xdist: Any = session.config.pluginmanager.get_plugin("dsession")
    if of_xdist is None:
        return bool(session.shouldfail)
    failures = int(getattr(of_xdist, "countfailures", 0))
    return bool(session.shouldfail) or 0 < int(of_xdist.maxfail or 0) <= failures


def node_of(node: Any, orders: bytes) -> Node:
    """A worker of xdist as the controller needs it."""
    gateway = node.gateway
    channel = gateway.newchannel()

    def start(given: bytes, heard: Callable[[bytes], None]) -> None:
        channel.setcallback(heard)
        more = {"conform_start": given, "conform_orders": orders, "conform_channel": channel}
        node.workerinput.update(more, conform_phases=wants_every_phase(node.config))

    process, where = execnet_adapter.process_of(gateway), execnet_adapter.where(gateway)
    by_socket = bool(getattr(gateway.spec, "socket", None))
    return Node(str(gateway.id), where, process, by_socket, start, channel.send)


@dataclass(eq=False)
class XdistHooks:
    """The run's reactions when a worker starts, ends or dies. ``stop`` ends the run with one message; ``begin`` is called
    before the first item runs; ``collected`` gets the items that a worker's pytest kept."""

    _controller: Controller
    _orders: bytes
    _stop: Callable[[ConformError], NoReturn]
    _begin: Callable[[], None]
    _collected: Callable[[Iterable[str]], None]
    _server: ForkServer | None
    _nodes: dict[str, Node] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        self._controller.watchdog.begin()
        try:
            yield  # xdist starts the workers
        except (execnet_adapter.HostNotFound, OSError) as error:
            self._unreachable(error, session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)  # … and the workers that replace dead ones
        except (execnet_adapter.HostNotFound, ConnectionError) as error:
            self._unreachable(error, session)

    def _unreachable(self, error: Exception, session: pytest.Session) -> NoReturn:
        absent = isinstance(error, execnet_adapter.HostNotFound)
        text = f"no host answers at {error}" if absent else str(error)
        self._stop(
            ConformError(
                f"a worker of {', '.join(session.config.option.tx)} cannot be started: {text}. Each --tx must name a "
                "host that can be reached, with a Python that has torch, the suite and the backend"
            )
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Every worker collects before the first item runs."""
        try:
            self._begin()
        except ConformError as error:
            self._stop(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Before the first worker starts."""
        of_xdist: Any = config.pluginmanager.get_plugin("dsession")
        if self._server is not None:
            group = of_xdist.nodemanager.group
            execnet_adapter.start_through(self._server, group, self._controller)

    def pytest_configure_node(self, node: Any) -> None:
        found = self._nodes[str(node.gateway.id)] = node_of(node, self._orders)
        self._controller.configured(found)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self._collected(output.get("conform_collected", ()))
        try:
            self._controller.down(self._nodes[str(node.gateway.id)], error)
        except ConformError as given_up:
            self._stop(given_up)

    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Name the cell that the dead worker was in, and have the rest of its item run again."""
        config = report.node.config
        item_id = crashitem.partition("[")[2].removesuffix("]")
        found = self._controller.crashed(item_id, self._nodes[str(report.node.gateway.id)])
        report.when, report.longrepr = "call", found.text
        report.outcome = "failed" if found.failed else "passed"
        if not found.failed and config.option.verbose >= 0:
            say(config, found.text)
        if found.again:
            sched.mark_test_pending(crashitem)
        session = config.pluginmanager.get_plugin("dsession")
        if not found.failed or session is None:
            return
        # Count it for -x and --maxfail: xdist counts only reports that workers sent.
        session.countfailures += 1
        if session.maxfail and session.countfailures >= session.maxfail and not session.shouldstop:
            session.shouldstop = f"stopping after {session.countfailures} failures"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if any(name == REPORT for name, _ in report.user_properties):
            self._controller.progress()

    def pytest_unconfigure(self) -> None:
        self._controller.watchdog.end()
