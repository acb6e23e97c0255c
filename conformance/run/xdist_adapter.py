"""The code that uses private names of pytest-xdist: its options, workers, session and schedulers.

The controller registers ``XdistHooks`` as a pytest plugin if workers run items. A worker uses ``input_of`` and
``report_collected``. ``tests/plugin/test_adapters.py`` checks that the private names exist.
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
#: A worker gets up to four items at a time. By default xdist sends up to a quarter of the rest at once. The programs for a
#: compiler, which take up to a minute each, stand next to each other, so that one worker would get them all.
_SENT_AT_A_TIME: Final = 4
#: Distribution modes of xdist whose schedulers take an item back after its worker died.
SUPPORTED: Final = ("load", "worksteal")


# -- options


def prepare_options(option: Any) -> None:
    """Sets the options of pytest-xdist so that a crash makes only one cell fail and does not end the run. Raises
    ConformError for a distribution mode that is not supported."""
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
    if getattr(option, "maxschedchunk", 0) is None:
        option.maxschedchunk = _SENT_AT_A_TIME


def wants_a_worker(option: Any) -> bool:
    """Returns True if a run gets one worker by default: neither ``-n`` nor another option of pytest-xdist was given,
    and no option requires that items run in pytest's own process."""
    if not hasattr(option, "numprocesses"):  # xdist is disabled
        return False
    given = option.numprocesses is not None or option.tx or option.dist != "no"
    return not (given or in_process(option))


def has_workers(option: Any) -> bool:
    """Returns True if workers run the items."""
    return bool(getattr(option, "tx", None)) and not option.collectonly


def has_workers_here(option: Any) -> bool:
    """Returns True if some workers run on this machine and the system can send file descriptors to them."""
    disabled = not hasattr(option, "numprocesses")  # xdist
    if disabled or option.collectonly or not hasattr(socket, "send_fds"):
        return False
    return bool(option.numprocesses) or any("popen" in tx for tx in option.tx)


def limit_workers(option: Any, items: int) -> None:
    """Reduces the number of workers to one for every 50 items, because more workers would cost more time than they
    save."""
    del option.tx[max(1, -(-items // ITEMS_OF_A_WORKER)) :]


# -- in a worker


def is_worker(config: pytest.Config) -> bool:
    """Returns True if this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def input_of(config: pytest.Config) -> tuple[str, bytes, bytes, Any, list[int]]:
    """Returns the input of a worker: its name, its encoded start data and orders, its channel to the controller, and
    the file descriptors of its pipes to the controller."""
    given: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    channel = given["conform_channel"]
    pipes = execnet_adapter.pipes_of(channel)
    return given["workerid"], given["conform_start"], given["conform_orders"], channel, pipes


def report_collected(config: pytest.Config, items: Iterable[str]) -> None:
    """Sends the names of the items that pytest collected in a worker to the controller."""
    config.workeroutput["conform_collected"] = list(items)  # type: ignore[attr-defined]


# -- in all processes


def wants_every_phase(config: pytest.Config) -> bool:
    """Returns True if setup, call and teardown of an item must be reported separately. This is necessary for debugging
    in one process, and if a third-party plugin may need the reports of setup or teardown (as pytest-rerunfailures and
    pytest-html do). The answer may change until all plugins are registered. The controller sends its answer to the
    workers, because some plugins are registered only in the controller."""
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
    """Returns the name of the worker that made a report; ``main`` if the run has no workers."""
    return str(getattr(report, "worker_id", "main"))


def stopped_by_failures(session: pytest.Session) -> bool:
    """Returns True if ``-x`` or ``--maxfail`` ended the run. In a run with workers the session of pytest-xdist counts
    the failures."""
    of_xdist: Any = session.config.pluginmanager.get_plugin("dsession")
    if of_xdist is None:
        return bool(session.shouldfail)
    failures = int(getattr(of_xdist, "countfailures", 0))
    return bool(session.shouldfail) or 0 < int(of_xdist.maxfail or 0) <= failures


def node_of(node: Any, orders: bytes) -> Node:
    """Returns the controller's data about a worker of pytest-xdist."""
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
    """The hooks of pytest-xdist that are called when a worker starts, ends or dies. ``stop`` ends the run with one
    message. ``begin`` is called before the first item runs. ``collected`` gets the names of the items that a worker
    collected."""

    _controller: Controller
    _orders: bytes
    _stop: Callable[[ConformError], NoReturn]
    _begin: Callable[[], None]
    _collected: Callable[[Iterable[str]], None]
    _server: ForkServer | None
    _nodes: dict[str, Node] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        """Starts the watchdog before the workers start, and stops the run if a worker cannot be started."""
        self._controller.watchdog.begin()
        try:
            yield  # xdist starts the workers
        except (execnet_adapter.HostNotFound, OSError) as error:
            self._unreachable(error, session)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Stops the run if a worker that replaces a dead worker cannot be started."""
        try:
            return (yield)  # … and the workers that replace dead ones
        except (execnet_adapter.HostNotFound, ConnectionError) as error:
            self._unreachable(error, session)

    def _unreachable(self, error: Exception, session: pytest.Session) -> NoReturn:
        absent = isinstance(error, execnet_adapter.HostNotFound)
        text = f"no host can be reached under the name {error}" if absent else str(error)
        self._stop(
            ConformError(
                f"a worker of {', '.join(session.config.option.tx)} cannot be started: {text}. Each --tx must name a "
                "host that can be reached, with a Python that has torch, the suite and the backend"
            )
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Begins the run when the first worker has collected its items, before any item runs."""
        try:
            self._begin()
        except ConformError as error:
            self._stop(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Arranges, before the first worker starts, that the fork server starts the workers of this machine."""
        of_xdist: Any = config.pluginmanager.get_plugin("dsession")
        if self._server is not None:
            group = of_xdist.nodemanager.group
            execnet_adapter.start_through(self._server, group, self._controller)

    def pytest_configure_node(self, node: Any) -> None:
        """Registers a new worker with the controller."""
        found = self._nodes[str(node.gateway.id)] = node_of(node, self._orders)
        self._controller.configured(found)

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Handles the end of a worker."""
        output = getattr(node, "workeroutput", None) or {}
        if (collected := output.get("conform_collected")) is not None:
            self._collected(collected)
        try:
            self._controller.down(self._nodes[str(node.gateway.id)], error)
        except ConformError as given_up:
            self._stop(given_up)

    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        """Changes the report of an item in which a worker died: the report then names the cell that caused the death.
        Schedules the rest of the item again."""
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
        """Tells the controller that an item has run. The controller then resets the number of workers that died in a
        row."""
        if any(name == REPORT for name, _ in report.user_properties):
            self._controller.progress()

    def pytest_unconfigure(self) -> None:
        """Stops the watchdog."""
        self._controller.watchdog.end()
