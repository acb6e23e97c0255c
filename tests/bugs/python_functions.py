"""Bugs of torch's Python functions, planted for calls with tensors of the simulated device while the cells of an entry run.
Each fault strikes under the condition that was reported, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
import torch.utils.checkpoint

import devices.simulated.backend  # noqa: F401 - the kernels are there before a fault replaces them
from conformance.suites.compile import exported_programs
from tests.bugs.kernels import leaked
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import SIMULATED, on_simulated
from tests.planting.tensors import as_dense

#: torch.optim removes the names of its modules.
adam: Final[Any] = import_module("torch.optim.adam")


@dataclass(frozen=True)
class InPython:
    """A fault in front of a Python function, in all calls (or, with ``here``, in those with a tensor of the device)."""

    owner: Any
    name: str
    effect: Effect
    here: bool = False


def _no_float64(call: KernelCall) -> Any:
    """The device has no float64, and a conversion to it raises."""
    raise TypeError("the device does not support float64")


def _found_inf_elsewhere(call: KernelCall) -> Any:
    """A fused step of AdamW refuses a found_inf that is on another index than a parameter."""
    found, decoupled = call.kwargs["found_inf"], call.kwargs["decoupled_weight_decay"]
    if decoupled and found is not None and any(each.device != found.device for each in call.first):
        raise RuntimeError("expected all tensors to be on the same device")
    return NOT_MET


def _counts_made_on_the_cpu(call: KernelCall) -> Any:
    """Step counts that are numbers become tensors of the CPU, where a fused step needs them on the device."""
    optimizer, states = call.first, call.args[1]["state"]
    numbers = [p for p, each in states.items() if isinstance(each.get("step"), (int, float))]
    result = call.honest()
    for parameter in numbers:
        step = optimizer.state[parameter]["step"]
        optimizer.state[parameter]["step"] = step.cpu()
    return result


def _step_counts_on_the_cpu(call: KernelCall) -> Any:
    """A state_dict is loaded with the step counts where they were, and a fused step needs them on the device."""
    key = call.args[4] if len(call.args) > 4 else call.kwargs.get("key")
    return call.args[1] if key == "step" else NOT_MET


def _recomputes_without_autocast(call: KernelCall) -> Any:
    """What a checkpoint recomputes is computed without the autocast of the device."""
    device, host = call.honest()
    return None if device is None else {**device, "enabled": False}, host


def _not_on_the_device(call: KernelCall) -> Any:
    """A factory function of random numbers refuses the device."""
    if str(call.kwargs.get("device", "")).startswith(SIMULATED):
        raise RuntimeError("could not create a tensor on the device")
    return NOT_MET


def _keeps_device_memory(call: KernelCall) -> Any:
    """Each backward pass keeps memory of the device."""
    leaked.append(torch.empty(1024, device=call.first.device))
    return NOT_MET


def _keeps_what_it_converts(call: KernelCall) -> Any:
    """A move to the device that also converts keeps memory of the device."""
    result = call.honest()
    source = call.first
    if on_simulated(result) and not on_simulated(source) and result.dtype != source.dtype:
        leaked.append(torch.empty(1024, device=result.device))
    return result


def _raises(message: str) -> Effect:
    """An exception stands for the end of the process."""

    def effect(call: KernelCall) -> Any:
        raise RuntimeError(message)

    return effect


def _no_location_of_the_device(call: KernelCall) -> Any:
    """torch.load refuses a map_location that names the device."""
    location = call.kwargs.get("map_location")
    if isinstance(location, (str, torch.device)) and str(location).startswith("simulated"):
        raise RuntimeError("don't know how to restore data location")
    return NOT_MET


def _without_the_index(call: KernelCall) -> Any:
    """A tensor is saved with the type of its device, and not with its index."""
    location = call.honest()
    return location.partition(":")[0] if str(location).startswith("simulated") else location


def _of_a_shorter_name(call: KernelCall) -> Any:
    """There is another device, "sim", which takes every location that begins with its name."""
    if str(call.args[1]).startswith("sim"):
        raise RuntimeError(
            "Attempting to deserialize object on a sim device, which is not available"
        )
    return NOT_MET


def _stays_on_the_cpu(call: KernelCall) -> Any:
    """A program that is moved keeps the device that its calls name."""
    program = call.first
    named = {node.name: node.kwargs["device"] for node in program.graph.nodes if "device" in node.kwargs}  # fmt: skip
    moved = call.honest()
    for node in moved.graph.nodes:
        if node.name in named:
            node.kwargs = {**node.kwargs, "device": named[node.name]}
    return moved


def _counters_stay(call: KernelCall) -> Any:
    """torch.manual_seed seeds the generators of the device, and leaves their counters as they were: one that has drawn
    numbers does not start with the first number of the seed."""
    module: Any = getattr(torch, SIMULATED)
    drew = []
    for each in module.default_generators():
        fresh = torch.Generator(each.device).manual_seed(each.initial_seed())
        drew.append(not torch.equal(fresh.get_state(), each.get_state()))
    result = call.honest()
    for each, had in zip(module.default_generators(), drew, strict=True):
        if had:
            torch.rand(1, generator=each, device=each.device)
    return result


def _pins_nothing_else(call: KernelCall) -> Any:
    """torch.tensor with pin_memory=True ends the process."""
    if call.kwargs.get("pin_memory"):
        raise RuntimeError("the process ended")
    return NOT_MET


def _ignores_the_location(call: KernelCall) -> Any:
    """torch.load ignores a map_location that names the device, and loads to the CPU."""
    location = call.kwargs.get("map_location")
    if isinstance(location, (str, torch.device)) and str(location).startswith("simulated"):
        return call.function(*call.args, **{**call.kwargs, "map_location": "cpu"})
    return NOT_MET


def _no_generator(call: KernelCall) -> Any:
    """randperm refuses every generator of the device."""
    if call.kwargs.get("generator") is not None:
        raise RuntimeError("Expected a 'simulated:0' generator device but found 'simulated'")
    return NOT_MET


def _out_in_a_row(call: KernelCall) -> Any:
    """randperm writes to a strided out= as if it were contiguous."""
    out = call.kwargs.get("out")
    if out is None or out.is_contiguous():
        return NOT_MET
    as_dense(out).copy_(
        call.function(*call.args, **{**call.kwargs, "out": None}, device=out.device)
    )
    return out


def _not_while_capturing(call: KernelCall) -> Any:
    """A checkpoint asks for the seed of the generator, which a capture does not permit."""
    module: Any = getattr(torch, SIMULATED)
    if module.is_current_stream_capturing():
        raise RuntimeError("Cannot call current_seed during a capture")
    return NOT_MET


def _float16_instead_of_the_region(call: KernelCall) -> Any:
    """A backward with custom_bwd runs in float16, whatever dtype the region of the forward had."""
    backward = call.honest()

    def run(ctx: Any, *given: Any) -> Any:
        if getattr(ctx, "_fwd_used_autocast", False):
            ctx._dtype = torch.float16
        return backward(ctx, *given)

    return run


@contextmanager
def _not_restored() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def _state_stays(call: KernelCall) -> Any:
    """fork_rng restores no state but the CPU's."""
    if call.kwargs.get("devices") == []:
        return NOT_MET
    return _not_restored()


def _pageable(call: KernelCall) -> Any:
    """A copy to the host that is not to block is made to memory that is not pinned."""
    result = call.honest()
    asked = call.kwargs.get("non_blocking") and on_simulated(call.first)
    if not asked or on_simulated(result) or not result.is_pinned():
        return result
    torch.accelerator.current_stream(call.first.device).synchronize()
    return result.clone()


def _autocast_off_within(call: KernelCall) -> Any:
    """What a transform of torch.func calls runs without the autocast of the device."""
    function, *rest = call.args

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(SIMULATED, enabled=False):
            return function(*args, **kwargs)

    return call.function(called, *rest, **call.kwargs)


#: By name: the fault of a Python function, while the cases of an entry run on the simulated device.
PYTHON: Final[dict[str, InPython]] = {
    "converting_moves_keep_memory": InPython(torch.Tensor, "to", _keeps_what_it_converts),
    "unpinned_copy_to_the_host": InPython(torch.Tensor, "to", _pageable, here=True),
    "vmap_runs_without_autocast": InPython(torch.func, "vmap", _autocast_off_within),
    "every_backward_is_refused": InPython(
        torch.autograd, "_engine_run_backward", _raises("0 <= device.index()"), here=True
    ),
    "printing_ends_the_process": InPython(
        torch.Tensor, "__repr__", _raises("the process ended"), here=True
    ),
    "scaler_finds_no_float64": InPython(torch.Tensor, "double", _no_float64, here=True),
    "storage_is_not_pinned": InPython(
        torch.UntypedStorage, "pin_memory", _raises("expected CUDA to be available")
    ),
    "load_refuses_the_device": InPython(torch, "load", _no_location_of_the_device),
    "index_is_not_saved": InPython(torch.serialization, "location_tag", _without_the_index),
    "fork_rng_does_not_restore": InPython(torch.random, "fork_rng", _state_stays),
    "checkpoint_recomputes_without_autocast": InPython(
        torch.utils.checkpoint, "_get_autocast_kwargs", _recomputes_without_autocast
    ),
    "fused_adamw_refuses_another_index": InPython(adam, "_fused_adam", _found_inf_elsewhere),
    "loaded_step_counts_stay": InPython(
        torch.optim.Optimizer, "_process_value_according_to_param_policy", _step_counts_on_the_cpu
    ),
    "numbers_of_steps_become_tensors_of_the_cpu": InPython(
        adam.Adam, "__setstate__", _counts_made_on_the_cpu
    ),
    "load_ignores_the_device": InPython(torch, "load", _ignores_the_location),
    "randperm_refuses_generators": InPython(torch, "randperm", _no_generator),
    "randperm_writes_in_a_row": InPython(torch, "randperm", _out_in_a_row),
    "checkpoint_is_refused_by_a_capture": InPython(
        torch.utils.checkpoint, "checkpoint", _not_while_capturing
    ),
    "backward_of_a_region_runs_in_float16": InPython(
        torch.amp, "custom_bwd", _float16_instead_of_the_region
    ),
    "load_takes_another_device": InPython(
        torch.serialization, "default_restore_location", _of_a_shorter_name
    ),
    "tensor_with_pin_memory_ends_the_process": InPython(torch, "tensor", _pins_nothing_else),
    "exported_program_stays_on_the_cpu": InPython(
        exported_programs, "move_to_device_pass", _stays_on_the_cpu
    ),
    "manual_seed_leaves_the_counter": InPython(torch, "manual_seed", _counters_stay),
    "rand_refuses_the_device": InPython(torch, "rand", _not_on_the_device),
    "backward_keeps_memory": InPython(torch.Tensor, "backward", _keeps_device_memory, here=True),
}
