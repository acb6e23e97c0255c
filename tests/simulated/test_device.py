"""The simulated device is real where it matters: memory, placement, copies, running out, random numbers."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from devices import registry
from devices.simulated.backend import library
from tests.plugin.running import ForkServer

SIMULATED = registry.get("simulated")
MIB = 2**20


def test_the_descriptor_is_usable_where_it_was_built() -> None:
    assert SIMULATED.unavailable() is None
    assert SIMULATED.facts()["device_name"] == "Simulated device"


@pytest.mark.parametrize("name", sorted(SIMULATED.dtypes))
def test_a_declared_dtype_allocates_and_converts(name: str) -> None:
    made = torch.empty(4, dtype=getattr(torch, name), device="simulated")
    torch.ones(4, device="simulated").to(made.dtype).to(torch.float32)
    assert made.data_ptr() % SIMULATED.alignment == 0


# What the host may not do


def _in_a_process(fork: ForkServer, folder: Path, code: str) -> tuple[int, str]:
    script = folder / "script.py"
    header = "import torch, devices.simulated.backend\n"
    script.write_text(header + textwrap.dedent(code), encoding="utf-8")
    ran = fork.script(script)
    return ran.code, ran.text


def test_the_host_faults_where_it_follows_an_address_of_the_device(
    fork: ForkServer, tmp_path: Path
) -> None:
    code, said = _in_a_process(
        fork,
        tmp_path,
        """
        import ctypes
        x = torch.ones(4, device="simulated")
        print("before", flush=True)
        ctypes.string_at(x.data_ptr(), 4)
        print("after", flush=True)
        """,
    )
    assert code in (-11, 139) and "before" in said and "after" not in said


def test_use_after_fork_raises_and_says_what_to_do(fork: ForkServer, tmp_path: Path) -> None:
    code, said = _in_a_process(
        fork,
        tmp_path,
        """
        import os
        x = torch.ones(4, device="simulated")
        child = os.fork()
        if child == 0:
            try:
                x + x
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1], (x + x).tolist())
        """,
    )
    assert code == 0 and "choose the 'spawn' start method" in said
    assert "0 [2.0, 2.0, 2.0, 2.0]" in said


def test_reading_bytes_back_swapped_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="byteswap"):
        torch.ones(4, device="simulated").untyped_storage().byteswap(torch.float32)


# Devices


def test_an_index_past_the_last_raises() -> None:
    with pytest.raises(RuntimeError, match="invalid device index 7: there are 2 devices"):
        torch.empty(1, device="simulated:7")


def test_operands_on_two_devices_raise() -> None:
    here, there = (torch.ones(2, device=f"simulated:{index}") for index in (0, 1))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        here + there


def test_an_operand_of_the_cpu_raises_unless_it_is_a_scalar() -> None:
    here = torch.ones(2, device="simulated")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        here + torch.ones(2)
    assert (here + torch.tensor(1.0)).tolist() == [2.0, 2.0]


def test_a_copy_between_devices_keeps_values_and_strides() -> None:
    here = torch.arange(6.0, device="simulated:0").view(2, 3).t()
    there = here.to("simulated:1")
    assert there.device.index == 1 and there.stride() == here.stride()
    assert there.tolist() == here.tolist()


# Memory


def test_running_out_raises_and_leaves_what_lives() -> None:
    torch.simulated.empty_cache()
    free = torch.simulated.mem_get_info()[0]
    kept = torch.arange(4, device="simulated")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate .* MiB"):
        torch.empty(free + MIB, dtype=torch.uint8, device="simulated")
    assert kept.tolist() == [0, 1, 2, 3]
    assert torch.empty(free // 2, dtype=torch.uint8, device="simulated").numel() == free // 2


def test_blocks_are_counted_and_come_back() -> None:
    before = torch.simulated.memory_allocated()
    block = torch.empty(1000, dtype=torch.uint8, device="simulated")
    assert torch.simulated.memory_allocated() == before + 1024
    address = block.data_ptr()
    del block
    assert torch.simulated.memory_allocated() == before
    assert torch.empty(1000, dtype=torch.uint8, device="simulated").data_ptr() == address


def test_an_out_that_grows_grows_on_the_device() -> None:
    out = torch.empty(0, device="simulated")
    torch.add(torch.ones(3, 4, device="simulated"), 1, out=out)
    assert out.shape == (3, 4) and out.device.type == "simulated"
    assert out.untyped_storage().nbytes() >= 48


# Random numbers, order


def test_a_seed_gives_the_same_numbers_and_the_cpu_s_stay_untouched() -> None:
    state = torch.get_rng_state()
    torch.simulated.manual_seed_all(3)
    first = torch.rand(5, device="simulated")
    torch.simulated.manual_seed_all(3)
    assert torch.equal(first, torch.rand(5, device="simulated"))
    assert torch.equal(state, torch.get_rng_state())


def test_two_streams_run_beside_one_another() -> None:
    busy, other = torch.Stream("simulated"), torch.Stream("simulated")
    gate = torch.simulated.Gate()
    with busy:
        gate.close()
    with other:
        done = torch.ones(2, device="simulated") + 1
        event = other.record_event()
    event.synchronize()
    assert done.tolist() == [2.0, 2.0] and other.query() and not busy.query()
    gate.open()
    busy.synchronize()
    assert busy.query()


def test_a_stream_waits_for_the_event_it_was_told_to_wait_for() -> None:
    first, second = torch.Stream("simulated"), torch.Stream("simulated")
    gate = torch.simulated.Gate()
    with first:
        gate.close()
        event = first.record_event()
    second.wait_event(event)
    after = second.record_event()
    assert not after.query()
    gate.open()
    after.synchronize()
    assert after.query()


def test_ops_are_seen_where_a_fault_could_be_planted() -> None:
    library.seen_since()
    torch.ones(2, device="simulated").exp()
    assert "aten::exp" in library.seen_since()
