"""Two machines for a test, as far as one can be two: network namespaces with an sshd and a host name each."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.plugin.running import CHECKOUT

_SSHD = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
"""
_OPTIONS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def why_not() -> str | None:
    """Why this machine cannot be two; None where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    missing = [name for name in ("ip", "ssh", "ssh-keygen", "unshare") if not shutil.which(name)]
    if not Path("/usr/sbin/sshd").exists():
        missing.append("sshd")
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: openssh-server, iproute2)"
    name = f"conform-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that ssh reaches: its name, and what ssh is told."""

    name: str
    ssh: str
    folder: Path

    def tx(self, env: Mapping[str, str]) -> str:
        """xdist's ``--tx`` for a worker there. The checkout is on its path; nothing is copied."""
        python = f"env PYTHONPATH={CHECKOUT} {sys.executable}"
        spec = [f"ssh={self.ssh}", f"python={python}", f"chdir={self.folder / self.name}"]
        return "//".join([*spec, *(f"env:{name}={value}" for name, value in env.items())])


@contextmanager
def hosts(names: Sequence[str], folder: Path) -> Iterator[list[Host]]:
    """These hosts, each on a link of its own to this one, with addresses that no other network has."""
    for key in ("host", "user"):
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    (folder / "sshd").write_text(_SSHD.format(folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it for what it does without privileges
    with ExitStack() as stack:
        yield [
            stack.enter_context(_host(name, number, folder)) for number, name in enumerate(names)
        ]


def _free_network() -> IPv4Network:
    """A network for two that no link of this machine is in: of a test that was killed, the namespaces stay, and
    what is sent to their addresses goes to them."""
    links = json.loads(_call("ip", "-json", "-4", "address"))
    taken = [IPv4Address(each["local"]) for link in links for each in link["addr_info"]]
    for network in IPv4Network("198.51.100.0/24").subnets(new_prefix=30):  # TEST-NET-2, RFC 5737
        if not any(address in network for address in taken):
            return network
    raise RuntimeError(
        "every network of 198.51.100.0/24 is in use: `ip netns list`, `ip netns del NAME`"
    )


@contextmanager
def _host(name: str, number: int, folder: Path) -> Iterator[Host]:
    space, link = f"{name}-{os.getpid()}", f"c{number}p{os.getpid()}"  # 15 characters at most
    here, there = (str(address) for address in _free_network().hosts())
    _call("ip", "netns", "add", space)
    try:
        _call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _call("ip", "address", "add", f"{here}/30", "dev", link)
        _call("ip", "link", "set", link, "up")
        _call("ip", "-n", space, "address", "add", f"{there}/30", "dev", "eth0")
        _call("ip", "-n", space, "link", "set", "eth0", "up")
        serve = f"hostname {name}; exec ip netns exec {space} /usr/sbin/sshd -D -e -f {folder}/sshd"
        told = folder / f"{name}.log"
        with told.open("wb") as log:
            sshd = subprocess.Popen(["unshare", "--uts", "sh", "-c", serve], stdout=log, stderr=log)
        try:
            _wait_for(there, 22, sshd, told)
            yield Host(name, f"-i {folder}/user {_OPTIONS} root@{there}", folder)
        finally:
            sshd.terminate()
            sshd.wait(timeout=30)
    finally:
        _call("ip", "netns", "del", space)  # its end of the link goes, and so does ours


@contextmanager
def socket_servers(count: int, folder: Path) -> Iterator[list[str]]:
    """So many of execnet's socket servers on this machine, as ``HOST:PORT``, each started again when it ends. They
    work in the folder."""
    loop = (
        "while true; do {python} -m execnet.script.socketserver 127.0.0.1:{port}; sleep 0.1; done"
    )
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            server = subprocess.Popen(
                ["sh", "-c", loop.format(python=sys.executable, port=port)],
                cwd=folder, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            stack.callback(_end_group, server)
            _listens(port)
            found.append(f"127.0.0.1:{port}")
        yield found


def _listens(port: int) -> None:
    """Wait until something does, without a connection: the server would take it for its only one."""
    deadline = time.monotonic() + 60
    listening = f"0100007F:{port:04X} 00000000:0000 0A"
    while listening not in Path("/proc/net/tcp").read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no socket server listens on port {port}")
        time.sleep(0.05)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, 9)
    process.wait(timeout=30)


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _wait_for(address: str, port: int, server: subprocess.Popen[bytes], told: Path) -> None:
    """Until the server listens there. On a machine with much else to do, that has taken more than 30 seconds."""
    deadline = time.monotonic() + 180
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError as error:
            why = None
            if (code := server.poll()) is not None:
                why = f"it ended with {code}"
            elif time.monotonic() > deadline:
                why = f"after 180 s: {error}"
            if why:
                wanted = f"no server on {address}:{port}, {why}"
                raise RuntimeError(f"{wanted}\n{told.read_text()}") from error
            time.sleep(0.05)
