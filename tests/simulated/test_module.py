"""``torch.simulated`` has what device modules have: pools, pluggable memory, properties, streams with priorities."""

from __future__ import annotations

import textwrap
import uuid
from pathlib import Path

import pytest
import torch

import devices.simulated.backend as backend
from devices import registry
from devices.descriptor import FUNCTIONS
from tests.plugin.running import ForkServer

MIB = 2**20

#: What torch.cuda has and this device does not: another driver, other hardware, other names of the same.
NOT_HERE = {
    *("cudart", "cudaStatus", "CudaError", "check_error", "DeferredCudaCallError", "ipc_collect"),
    *("current_blas_handle", "current_solver_handle", "get_arch_list", "get_gencode_flags"),
    *("get_sync_debug_mode", "set_sync_debug_mode", "list_gpu_processes"),
    *("device_memory_used", "memory_usage", "utilization", "temperature", "power_draw"),
    *("clock_rate", "memory_cached", "max_memory_cached", "reset_max_memory_cached"),
    *("reset_max_memory_allocated", "memory_summary", "caching_allocator_alloc"),
    *("caching_allocator_delete", "caching_allocator_enable", "get_allocator_backend"),
    *("CUDAPluggableAllocator", "StreamContext"),
    "caching_allocator_disabled",
    *("has_half", "has_magma", "default_generators"),
}


def test_it_has_the_functions_of_other_device_modules() -> None:
    names = {name for name in torch.cuda.__all__ if name[0].islower()}
    common = {name for name in names if callable(getattr(torch.cuda, name, None))}
    kinds = (type(torch), type(torch.cuda.FloatStorage))
    wanted = {name for name in common if not isinstance(getattr(torch.cuda, name), kinds)}
    assert len(wanted) > 40
    assert {name for name in wanted - NOT_HERE if not hasattr(torch.simulated, name)} == set()


def test_every_function_that_the_descriptor_names_is_there() -> None:
    named = registry.get("simulated").functions
    for role, path in named.items():
        found = torch.simulated
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found), role
    assert set(FUNCTIONS) - set(named) <= {"graph"}


def test_settings_that_have_no_effect_are_refused_and_the_declared_ones_are_not() -> None:
    values = {"max_split_size_mb": "200", "roundup_power2_divisions": "1"}
    assert values.keys() == registry.get("simulated").settings
    for setting, value in values.items():
        torch.simulated.memory._set_allocator_settings(f"{setting}:{value}")
    with pytest.raises(ValueError, match="expandable_segments has no effect"):
        torch.simulated.memory._set_allocator_settings("expandable_segments:True")


def test_unknown_settings_and_bad_values_are_refused() -> None:
    for text in ("no_such_key:1", "max_split_size_mb:1", "expandable_segments:maybe"):
        with pytest.raises(ValueError, match="no_such_key|max_split_size_mb|Expected 'True'"):
            torch.simulated.memory._set_allocator_settings(text)


# Properties


def test_properties_are_stable_and_tell_devices_apart() -> None:
    first, second = (torch.simulated.get_device_properties(index) for index in (0, 1))
    assert first == torch.simulated.get_device_properties("simulated:0")
    assert first.uuid != second.uuid and isinstance(first.uuid, uuid.UUID)
    assert len(first.uuid.bytes) == 16 and first.name == second.name == "Simulated device"
    assert first.total_memory == torch.simulated.mem_get_info(0)[1]


def test_an_absent_index_has_none() -> None:
    for call in (
        torch.simulated.get_device_properties,
        torch.simulated.get_device_name,
        lambda index: torch.simulated.can_device_access_peer(0, index),
        torch.simulated.memory_stats,
        torch.accelerator.get_device_capability,
    ):
        with pytest.raises(RuntimeError, match="invalid device index 7"):
            call(7)


def test_devices_read_one_another_s_memory() -> None:
    assert torch.simulated.can_device_access_peer(0, 1)
    assert not torch.simulated.can_device_access_peer(1, 1)


def test_the_capability_names_the_declared_dtypes() -> None:
    capable = torch.accelerator.get_device_capability("simulated")["supported_dtypes"]
    declared = {getattr(torch, name) for name in registry.get("simulated").dtypes}
    assert declared <= set(capable)


# Streams


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (-1, -1), (-9, -1), (5, 0)])
def test_priorities_are_kept_or_clamped(asked: int, given: int) -> None:
    stream = torch.simulated.Stream(priority=asked)
    assert stream.priority == given
    least, greatest = stream.priority_range()
    assert (least, greatest) == registry.get("simulated").priorities


def test_a_wrapped_stream_is_its_owner_s_queue() -> None:
    handle, number = backend.library.new_external_stream(1)
    wrapped = torch.simulated.get_stream_from_external(handle, 1)
    assert (wrapped.stream_id, wrapped.device_index) == (number, 1)
    assert wrapped.native_handle == handle
    del wrapped
    again = torch.simulated.ExternalStream(handle, "simulated:1")
    with again:
        assert (torch.ones(2, device="simulated:1") + 1).tolist() == [2.0, 2.0]


def test_a_handle_of_no_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="no stream of device 0 has this handle"):
        torch.simulated.ExternalStream(4096, 0)


def test_default_and_current_streams() -> None:
    default = torch.simulated.default_stream(1)
    assert default == torch.simulated.current_stream(1) and not default.native_handle
    stream = torch.simulated.Stream(device=1)
    with torch.simulated.stream(stream):
        assert torch.simulated.current_stream(1) == stream != default
        assert torch.simulated.current_device() == 1
    assert torch.simulated.current_stream(1) == default


def test_events_of_the_module_measure_time() -> None:
    start, end = (torch.simulated.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.simulated.busy(5)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 5


# Memory


def take(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="simulated:0")


def test_a_pool_keeps_its_blocks_to_itself_and_gives_them_back() -> None:
    pool = torch.simulated.MemPool()
    with torch.simulated.use_mem_pool(pool, 0):
        block = take(3 * MIB)
    place = block.data_ptr()
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id and segment["allocated_size"] == 3 * MIB
    del block
    torch.simulated.empty_cache()
    assert len(pool.snapshot()) == 1  # while it lives
    assert take(3 * MIB).data_ptr() != place
    with torch.simulated.use_mem_pool(pool, 0):
        assert take(3 * MIB).data_ptr() == place
    number = pool.id
    del pool
    torch.simulated.empty_cache()
    assert number not in {one["segment_pool_id"] for one in torch.simulated.memory_snapshot()}


def test_a_pool_may_die_before_its_blocks() -> None:
    pool = torch.simulated.MemPool()
    with torch.simulated.use_mem_pool(pool, 0):
        block = take(MIB).fill_(7)
    number = pool.id
    del pool
    torch.simulated.empty_cache()
    assert int(block[-1]) == 7
    del block
    torch.simulated.empty_cache()
    assert number not in {one["segment_pool_id"] for one in torch.simulated.memory_snapshot()}


def test_pools_differ_and_are_the_thread_s_alone() -> None:
    first, second = torch.simulated.MemPool(), torch.simulated.MemPool()
    assert first.id != second.id and first.use_count() == 0
    with torch.simulated.use_mem_pool(first, 0), torch.simulated.use_mem_pool(second, 0):
        take(100)
    assert first.use_count() == second.use_count() == 1


def test_a_plugged_allocator_serves_every_request(fork: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "plugged.py"  # in a process of its own: it stays for its life
    script.write_text(
        textwrap.dedent(
            """
            import torch, devices.simulated.backend
            memory, seen = torch.simulated.memory, []

            def take(size, device, stream):
                seen.append(("take", size, device))
                return memory.driver_alloc(size, device)

            def give(address, size, device, stream):
                seen.append(("give", size, device))
                memory.driver_free(address, size)

            memory.change_current_allocator(memory.PluggableAllocator(take, give))
            x = torch.ones(4, device="simulated:1")
            print((x + 1).tolist())
            del x
            torch.simulated.synchronize(1)
            print(seen)
            try:
                memory.change_current_allocator(memory.PluggableAllocator(take, give))
            except RuntimeError as error:
                print("refused:", error)
            try:
                torch.empty(2**40, dtype=torch.uint8, device="simulated")
            except torch.OutOfMemoryError as error:
                print("out of memory")
            """
        )
    )
    ran = fork.script(script)
    lines = ran.text.splitlines()
    assert lines[0] == "[2.0, 2.0, 2.0, 2.0]"
    events = [("take", 16, 1), ("take", 16, 1), ("give", 16, 1), ("give", 16, 1)]
    assert lines[1] == str(events), ran.text
    assert "refused: simulated device: the allocator cannot be changed" in ran.text
    assert "out of memory" in lines[-1]


def test_pinned_counters_have_the_names_of_torch_cuda() -> None:
    torch.ones(4).pin_memory()
    names = set(torch.simulated.host_memory_stats())
    for counter in ("active_requests", "active_bytes", "allocations", "allocated_bytes"):
        assert {f"{counter}.{kind}" for kind in ("current", "peak", "allocated", "freed")} <= names
    assert {"num_host_alloc", "num_host_free"} <= names


# Compiled code


def test_dynamo_knows_the_device() -> None:
    from torch._dynamo.device_interface import get_interface_for_device

    known = get_interface_for_device("simulated")
    assert known is get_interface_for_device("simulated:1")
    assert known.device_count() == 2 and known.is_available()
    assert known.current_device() == torch.simulated.current_device()
    with known.device(1):
        assert known.exchange_device(0) == 1 and known.maybe_exchange_device(-1) == 0
        known.set_device(1)
    assert known.get_device_properties(0).total_memory == torch.simulated.mem_get_info(0)[1]
    assert known.current_stream() == torch.simulated.current_stream()


def test_random_numbers_follow_torch_s_seed_on_every_index() -> None:
    def draw() -> list[list[float]]:
        torch.manual_seed(11)
        return [torch.rand(3, device=f"simulated:{index}").tolist() for index in (0, 1)]

    assert draw() == draw()
    with torch.random.fork_rng(devices=[0, 1], device_type="simulated"):
        inside = torch.rand(3, device="simulated:0").tolist()
    assert torch.rand(3, device="simulated:0").tolist() == inside
