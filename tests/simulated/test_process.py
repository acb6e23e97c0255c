"""The device in processes: many threads, ends with work in flight, forks, a fresh start by spawn."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.plugin.running import CHECKOUT, ForkServer, Ran


def run(fork: ForkServer, folder: Path, code: str) -> Ran:
    script = folder / "script.py"
    header = "import torch, devices.simulated.backend\n"
    script.write_text(header + textwrap.dedent(code), encoding="utf-8")
    return fork.script(script)


def test_many_threads_keep_their_work_apart(fork: ForkServer, tmp_path: Path) -> None:
    # In a process of its own: what is left over at the end is looked at.
    ran = run(
        fork,
        tmp_path,
        """
        from tests.simulated.stress import stress
        done, wrong = stress(threads=3, seed=0, goes_on=lambda done: done < 15)
        print(done, wrong)
        """,
    )
    assert ran.text.strip() == "[15, 15, 15] []"


#: What is alive, and in flight, when the interpreter ends: with each of it a device can crash or hang. Not a daemon
#: thread that runs ops: torch aborts then, on the CPU too.
ALIVE = """
import torch, devices.simulated.backend
kept = [torch.ones(10, device=f"simulated:{index}") for index in (0, 1)]
streams = [torch.Stream("simulated") for _ in range(20)]
events = [stream.record_event() for stream in streams]
leaf = torch.ones(4, device="simulated", requires_grad=True)
graph = (leaf * 2).exp().sum()
graph.backward(retain_graph=True)
class Cycle: pass
one = Cycle(); one.me = one; one.x = torch.ones(4, device="simulated"); del one
pool = torch.simulated.MemPool()
with torch.simulated.use_mem_pool(pool):
    pooled = torch.ones(4, device="simulated")
generator = torch.Generator("simulated:1")
wrapped = torch.simulated.ExternalStream(streams[0].native_handle)
with streams[2]:
    host = torch.ones(10**6).pin_memory()
    moved = host.to("simulated", non_blocking=True)
with streams[3]:
    gate = torch.simulated.Gate()
    gate.close()  # never opened
with streams[4]:
    x = torch.ones(200, 200, device="simulated")
    torch.simulated.busy(5)
    for _ in range(50):
        x = x @ x
with streams[1]:
    devices.simulated.backend.library.fail("never seen")
print("ends", flush=True)
"""


def test_a_process_ends_cleanly_with_all_kinds_of_things_alive() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ALIVE],
        cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")


def test_a_fork_before_the_first_use_is_no_fork_of_the_device(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = run(
        fork,
        tmp_path,
        """
        import os
        assert not torch.simulated.is_initialized()
        child = os.fork()
        print((torch.ones(2, device="simulated") + 1).tolist(), flush=True)
        if child == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        """,
    )
    assert ran.text == "[2.0, 2.0]\n[2.0, 2.0]\n0\n"


def test_seeding_and_asking_do_not_initialise(fork: ForkServer, tmp_path: Path) -> None:
    ran = run(
        fork,
        tmp_path,
        """
        torch.manual_seed(1)
        assert torch.simulated.is_available() and torch.accelerator.device_count() == 2
        torch.accelerator.current_accelerator()
        torch.simulated.get_device_properties(0)
        print(torch.simulated.is_initialized(), torch._C._accelerator_isAllocatorInitialized())
        """,
    )
    assert ran.text == "False False\n"
