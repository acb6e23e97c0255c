"""What the allocator tells: counters, history, snapshot, settings, pinned memory."""

from __future__ import annotations

import gc
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated
from tests.plugin.running import ForkServer

MIB = 2**20


def take(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="simulated")


def documented_names() -> set[str]:
    """Every name that the documentation of torch.cuda.memory_stats spells out."""
    names: set[str] = set()
    for text in re.findall(r'``"([a-z_.{},]+)"``:', torch.cuda.memory_stats.__doc__ or ""):
        made = [""]
        for part in re.split(r"(\{[^}]*\})", text):
            choices = part[1:-1].split(",") if part.startswith("{") else [part]
            made = [before + choice for before in made for choice in choices]
        names.update(made)
    names.discard("reserved_bytes_by_private_pools")  # nested, empty without a pool
    # The page says "allocated" of the counter that torch itself calls "allocation".
    return {re.sub(r"^allocated\.", "allocation.", name) for name in names}


def test_every_documented_counter_is_there() -> None:
    torch.empty(1, device="simulated")  # counters are there once the device is used
    names = documented_names()
    assert len(names) > 100
    assert names - set(torch.simulated.memory_stats()) == set()


def test_counters_are_those_of_torch_accelerator() -> None:
    known = torch.accelerator.memory.memory_stats("simulated:0")
    ours = torch.simulated.memory_stats()
    by_pool = {name: ours[name] for name in ours if "private_pools" in name}
    assert {**known, **by_pool, "num_oom_rejections": 0} == ours


# History and snapshot


@pytest.fixture
def recorded() -> Iterator[None]:
    gc.collect()  # what other tests left would be freed meanwhile, and recorded
    torch.simulated.synchronize()
    torch.simulated.memory._record_memory_history(max_entries=3)
    yield
    torch.simulated.memory._record_memory_history(enabled=None)


def test_a_block_leaves_three_events_in_order(recorded: None) -> None:
    with torch.Stream("simulated") as stream:
        take(512)  # makes a segment
        block = take(1000)
        address = block.data_ptr()
        del block
    events = torch.simulated.memory._snapshot()["device_traces"][0]
    assert [event["action"] for event in events] == ["alloc", "free_requested", "free_completed"]
    assert {(event["addr"], event["size"], event["stream"]) for event in events} == {
        (address, 1024, stream.stream_id)
    }


def test_a_block_that_another_stream_uses_is_pending_until_that_is_done(recorded: None) -> None:
    gate, other = torch.simulated.Gate(), torch.Stream("simulated")
    with other:
        gate.close()
    block = take(1000)
    address = block.data_ptr()
    block.record_stream(other)
    del block

    def state() -> str:
        return next(
            one["state"]
            for segment in torch.simulated.memory._snapshot()["segments"]
            for one in segment["blocks"]
            if one["address"] == address
        )

    assert state() == "active_pending_free"
    gate.open()
    other.synchronize()
    take(512)  # looks whether others are done
    assert "free_completed" in [
        event["action"] for event in torch.simulated.memory._snapshot()["device_traces"][0]
    ]


def test_the_snapshot_adds_up_to_the_counters(fork: ForkServer, tmp_path: Path) -> None:
    # In a process of its own: an allocator that planted faults have spoilt no longer adds up.
    script = tmp_path / "adds_up.py"
    script.write_text(
        textwrap.dedent(
            """
            import pickle, sys
            import torch
            import devices.simulated.backend

            kept = [torch.empty(n, dtype=torch.uint8, device="simulated") for n in (100, 5000, 3 << 20)]
            path = sys.argv[0] + ".pickle"
            torch.simulated.memory._dump_snapshot(path)
            with open(path, "rb") as file:
                snapshot = pickle.load(file)
            segments = [one for one in snapshot["segments"] if one["device"] == 0]
            stats = torch.simulated.memory_stats(0)
            for name, counter in (
                ("total_size", "reserved_bytes"),
                ("allocated_size", "allocated_bytes"),
                ("active_size", "active_bytes"),
                ("requested_size", "requested_bytes"),
            ):
                assert sum(one[name] for one in segments) == stats[f"{counter}.all.current"] > 0, name
            assert len(segments) == stats["segment.all.current"] > 0 and len(kept) == 3
            print("adds up")
            """
        )
    )
    ran = fork.script(script)
    assert ran.code == 0 and "adds up" in ran.text, ran.text


def test_torch_s_visualiser_reads_the_snapshot(recorded: None) -> None:
    from torch.cuda import _memory_viz

    kept = take(1000)
    snapshot = torch.simulated.memory._snapshot()
    assert "segsum" in dir(_memory_viz) and str(kept.device.index) in "01"
    assert _memory_viz.segsum(snapshot) and _memory_viz.trace(snapshot)


@pytest.mark.parametrize("given", [{"enabled": "some"}, {"max_entries": 0}])
def test_a_history_that_cannot_be_kept_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        torch.simulated.memory._record_memory_history(**given)


# Settings


def test_settings_take_effect(fork: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"  # in a process of its own: they hold for its life
    script.write_text(
        textwrap.dedent(
            """
            import torch, devices.simulated.backend
            MIB = 2**20

            def take(count):
                return torch.empty(count, dtype=torch.uint8, device="simulated")

            torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
            block = take(9000)
            print("rounded", torch.simulated.memory_allocated())
            torch._C._accelerator_setAllocatorSettings("max_split_size_mb:20")
            large = take(64 * MIB)
            print("oversize", torch.simulated.memory_stats()["oversize_allocations.current"])
            del large
            before = torch.simulated.memory_reserved()
            small = take(8 * MIB)
            print("kept whole", torch.simulated.memory_reserved() > before)
            print("size", torch.simulated.memory_stats()["max_split_size"])
            """
        ),
        encoding="utf-8",
    )
    ran = fork.script(script)
    assert " ".join(ran.text.split()) == "rounded 10240 oversize 1 kept whole True size 20971520"


# Pinned memory


def test_pinned_memory_is_counted_and_used_again() -> None:
    torch.simulated.empty_host_cache()
    before = torch.simulated.host_memory_stats()
    block = torch.ones(4).pin_memory()
    during = torch.simulated.host_memory_stats()
    assert during["active_requests.current"] == before["active_requests.current"] + 1
    assert during["active_bytes.current"] == before["active_bytes.current"] + 4096
    assert during["num_host_alloc"] == before["num_host_alloc"] + 1
    del block
    torch.ones(8).pin_memory()
    after = torch.simulated.host_memory_stats()
    assert after["num_reuses"] == before["num_reuses"] + 1
    assert after["active_requests.current"] == before["active_requests.current"]
    torch.accelerator.memory.empty_host_cache()
    assert torch.simulated.host_memory_stats()["num_host_free"] == after["num_host_free"] + 1
