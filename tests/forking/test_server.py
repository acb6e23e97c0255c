"""The fork server itself: its copies live, end and are asked for as processes are; one that may not be copied works."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import execnet
import pytest
import torch

from conformance.checks.child import NoCopy
from conformance.checks.clock import Process
from conformance.run.execnet_adapter import is_plain, start_through
from conformance.run.fork_client import STATUS, Forked, ForkServer
from conformance.run.fork_server import has_lost_a_device, may_copy
from tests.forking.threads import with_thread

#: Each test waits for processes that load torch; the fast tests fork workers in test_runs.py.
pytestmark = pytest.mark.slow
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="nothing is copied but on Linux"
)


class Watcher:
    """Which workers were watched; ``lethal`` ends each with SIGKILL as soon as it is watched."""

    def __init__(self, *, lethal: bool = False) -> None:
        self.watched: list[tuple[str, str]] = []
        self._lethal, self.watchdog = lethal, self

    def watch(self, name: str, pid: int) -> None:
        self.watched.append(("watched", name))
        if self._lethal:
            os.kill(pid, signal.SIGKILL)

    def forget(self, name: str) -> None:
        self.watched.append(("forgotten", name))


class Started:
    """A worker and the pipes to it."""

    def __init__(self, server: ForkServer, code: str) -> None:
        its_stdin, self.stdin = os.pipe()
        self.stdout, its_stdout = os.pipe()
        self.process: Process = server.start(its_stdin, its_stdout, 2)
        os.close(its_stdin)
        os.close(its_stdout)
        os.write(self.stdin, (repr(code) + "\n").encode())

    def said(self) -> str:
        """All that it prints, until it ends."""
        with os.fdopen(self.stdout) as stream:
            return stream.read()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer()
    yield found
    found.close()


@linux
def test_a_worker_is_a_copy_that_has_torch_and_the_database_loaded(server: ForkServer) -> None:
    names = "torch", "torch.testing._internal.common_methods_invocations"
    worker = Started(server, f"import sys; print([name in sys.modules for name in {names}])")
    assert isinstance(worker.process, Forked)
    assert worker.said() == "[True, True]\n"
    assert worker.process.wait(timeout=30) == 0


@linux
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_the_status_of_a_worker_is_what_popen_would_tell(
    server: ForkServer, code: str, status: int
) -> None:
    worker = Started(server, code)
    assert worker.process.wait(timeout=30) == status
    assert worker.process.poll() == status and worker.process.returncode == status


@linux
def test_what_a_worker_registers_for_its_end_runs(server: ForkServer) -> None:
    worker = Started(server, "import atexit; atexit.register(print, 'over')")
    assert worker.said() == "over\n" and worker.process.wait(timeout=30) == 0


@linux
def test_a_worker_that_runs_has_no_status_and_can_be_killed(server: ForkServer) -> None:
    worker = Started(server, "import os, time; os.write(1, b'up'); time.sleep(600)")
    assert os.read(worker.stdout, 2) == b"up"
    assert worker.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(timeout=0.05)
    worker.process.kill()
    assert worker.process.wait(timeout=30) == -signal.SIGKILL
    worker.process.kill()  # once more does no harm: its id may be another's


@linux
def test_a_worker_has_the_environment_of_the_moment(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKED_NOW", "yes")
    monkeypatch.delenv("PATH")
    code = "import os; print(os.environ['FORKED_NOW'], 'PATH' in os.environ)"
    assert Started(server, code).said() == "yes False\n"


@linux
def test_ctrl_c_reaches_a_worker_and_not_its_server(server: ForkServer) -> None:
    os.kill(server._process.pid, signal.SIGINT)
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    worker = Started(server, f"try:\n    {code}\nexcept KeyboardInterrupt:\n    print('asked')")
    assert worker.said() == "asked\n"


@linux
def test_a_worker_whose_controller_has_gone_before_it_began_ends(server: ForkServer) -> None:
    its_stdin, stdin = os.pipe()
    process = server.start(its_stdin, its_stdin, 2)
    os.close(its_stdin)
    os.close(stdin)
    assert process.wait(timeout=30) == 0


@linux
def test_a_server_that_is_killed_takes_its_workers_with_it_and_is_missed() -> None:
    server = ForkServer()
    worker = Started(server, "import os, time; os.write(1, b'up'); time.sleep(600)")
    assert os.read(worker.stdout, 2) == b"up"
    server._process.kill()
    assert worker.process.wait(timeout=30) == -signal.SIGKILL
    assert worker.said() == ""  # its pipe is closed: it is no more
    with pytest.raises(NoCopy):
        Started(server, "")
    server.close()


def test_a_server_that_is_not_needed_is_ended_while_it_loads() -> None:
    server = ForkServer()
    server.close()
    assert server._process.returncode == -signal.SIGKILL
    with pytest.raises(NoCopy):
        server.start(0, 1, 2)


def test_a_process_with_threads_is_not_copied_but_is_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", with_thread(tmp_path))
    server = ForkServer()
    worker = Started(
        server, "import os, sys, threading; print(os.getpid(), threading.active_count())"
    )
    assert not isinstance(worker.process, Forked)
    assert worker.said() == f"{server._process.pid} 2\n"
    assert worker.process.wait(timeout=30) == 0
    with pytest.raises(NoCopy):  # the second worker is started without it
        Started(server, "")
    server.close()


def test_a_copy_says_whether_a_device_was_started_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not has_lost_a_device(torch)
    monkeypatch.setattr(torch.xpu, "_is_in_bad_fork", lambda: True)
    assert has_lost_a_device(torch)
    monkeypatch.setattr(torch.xpu, "_is_in_bad_fork", lambda: 1 / 0)
    assert has_lost_a_device(torch)


def test_nothing_is_copied_where_threads_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("copied"))
    monkeypatch.setattr("conformance.run.fork_server._THREADS", str(tmp_path / "none"))
    assert not may_copy()


def test_threads_that_ask_at_once_are_told_one_status() -> None:
    ours, theirs = socket.socketpair()
    asked: list[bytes] = []

    def serve() -> None:
        asked.append(theirs.recv(1))
        time.sleep(0.05)  # in which the others come
        theirs.sendall(STATUS.pack(7))

    worker = Forked(ours, 1)
    with theirs, ThreadPoolExecutor(5) as pool:
        pool.submit(serve)
        told = [each.result() for each in [pool.submit(worker.poll) for _ in range(4)]]
    assert told == [7] * 4 and asked == [b"?"]


@linux
def test_a_copy_that_nobody_can_ask_about_any_more_is_ended(server: ForkServer) -> None:
    worker = Started(server, "import os, time; os.write(1, b'up'); time.sleep(600)")
    assert os.read(worker.stdout, 2) == b"up"
    ended = os.pidfd_open(worker.process.pid)
    del worker.process
    assert select.select([ended], [], [], 60.0)[0]
    os.close(ended)


# -- children of what the server made


_ASKS = """
from conformance.checks.child import Child, ask
answer, ended = ask(Child("tests.behaviour.children:answers", None, copied={copied}))
print("copy" if answer["torch"] else "fresh", ended)
"""


@linux
@pytest.mark.parametrize(("copied", "which"), [(True, "copy"), (False, "fresh")])
def test_the_child_of_a_worker_is_a_copy_if_it_may_be(
    server: ForkServer, copied: bool, which: str
) -> None:
    worker = Started(server, _ASKS.format(copied=copied))
    assert worker.said() == f"{which} exited with status 0\n"


@linux
def test_the_child_of_a_worker_has_seen_nothing_that_the_worker_did(server: ForkServer) -> None:
    code = "import os, torch; os.environ['CONFORM_EXAMPLE'] = 'now'; torch.example = 1"
    asks = _ASKS.format(copied=True) + "print(answer['seen'], answer['marked'])"
    assert Started(server, code + asks).said() == "copy exited with status 0\nnow False\n"


@linux
@pytest.mark.parametrize("fork", [False, True])
def test_the_child_of_a_worker_that_is_killed_ends(server: ForkServer, fork: bool) -> None:
    code = (
        "from conformance.checks.child import Child\n"
        f"import os, time; fork = {fork} and os.fork()\n"
        "if fork: os.waitpid(fork, 0); time.sleep(600)\n"
        "with Child('tests.behaviour.children:hangs', 'silent', copied=True) as child:\n"
        "    for pid in child: os.write(1, f'{os.getpid()} {pid}\\n'.encode())\n"
    )
    worker = Started(server, code)
    with os.fdopen(worker.stdout) as stream:
        asking, child = map(int, stream.readline().split())
    ended = os.pidfd_open(child)
    os.kill(asking, signal.SIGKILL)
    assert select.select([ended], [], [], 60.0)[0]
    os.close(ended)
    worker.process.kill()
    worker.process.wait(timeout=30)


def test_a_server_that_can_make_no_copy_makes_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", with_thread(tmp_path))
    server = ForkServer()
    for _ in range(2):  # it goes on, and may become a worker
        with pytest.raises(NoCopy):
            server.start_child(0, 1, 2)
    worker = Started(server, "print('a worker')")
    assert worker.said() == "a worker\n"
    server.close()


# -- execnet's gateways


@pytest.mark.parametrize(
    ("spec", "plain"),
    [
        ("popen", True),
        ("execmodel=main_thread_only//popen", True),
        ("popen//id=gw7", True),
        ("popen//python=python3.12", False),
        ("popen//chdir=/tmp", False),
        ("popen//env:A=b", False),
        ("popen//nice=5", False),
        ("ssh=host", False),
        ("socket=127.0.0.1:8888", False),
    ],
)
def test_a_plain_worker_is_a_process_of_this_python_in_this_folder(spec: str, plain: bool) -> None:
    assert is_plain(execnet.XSpec(spec)) is plain


@linux
def test_a_group_makes_its_plain_gateways_through_the_server(server: ForkServer) -> None:
    group = execnet.Group(execmodel="main_thread_only")
    start_through(server, group, Watcher())
    forked = group.makegateway(execnet.XSpec("popen"))
    fresh = group.makegateway(execnet.XSpec("popen//env:FRESH=1"))
    loaded = "import sys; channel.send('torch' in sys.modules)"
    assert [each.remote_exec(loaded).receive(30) for each in (forked, fresh)] == [True, False]
    assert isinstance(forked._io.popen, Forked) and [each.id for each in group] == ["gw0", "gw1"]
    group.terminate(timeout=10)
    assert forked._io.popen.wait(timeout=30) == 0


@linux
def test_a_worker_that_is_killed_before_it_is_ready_is_replaced(server: ForkServer) -> None:
    group, watcher = execnet.Group(execmodel="main_thread_only"), Watcher(lethal=True)
    start_through(server, group, watcher)
    gateway = group.makegateway(execnet.XSpec("popen"))
    assert gateway.remote_exec("channel.send(6 * 7)").receive(30) == 42
    assert watcher.watched == [("watched", "gw0"), ("forgotten", "gw0")] and gateway.id == "gw0"
    group.terminate(timeout=10)


def test_a_group_whose_server_has_gone_makes_its_gateways_itself() -> None:
    server = ForkServer()
    server.close()
    group = execnet.Group(execmodel="main_thread_only")
    start_through(server, group, Watcher())
    gateway = group.makegateway(execnet.XSpec("popen"))
    assert gateway.remote_exec("channel.send(6 * 7)").receive(30) == 42
    group.terminate(timeout=10)
