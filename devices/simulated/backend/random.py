"""Random numbers of ``torch.simulated``, as in ``torch.cuda.random``."""

from __future__ import annotations

import torch

from devices.simulated.backend import native
from devices.simulated.backend.native import index_of


def _default(device: torch.types.Device = None) -> torch.Generator:
    generator: torch.Generator = native.library.default_generator(index_of(device))
    return generator


def default_generators() -> tuple[torch.Generator, ...]:
    """Returns the default generator of each device."""
    return tuple(_default(index) for index in range(native.library.device_count()))


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current device."""
    _default().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generator of every device."""
    if native.on("random.seed_lost_before_init") and not native.library.was_used():
        return
    every = default_generators()
    for generator in every[:1] if native.on("random.seed_first_index_only") else every:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the generator of the current device with a random number."""
    _default().seed()


def seed_all() -> None:
    """Seeds the generator of every device with the same random number."""
    manual_seed_all(torch.default_generator.seed())


def initial_seed() -> int:
    """Returns the seed of the current device's generator."""
    return int(_default().initial_seed())


def get_rng_state(device: torch.types.Device = None) -> torch.Tensor:
    """Returns the state of a device's generator, as bytes on the CPU."""
    return _default(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: torch.types.Device = None) -> None:
    """Sets the state of a device's generator to a state that ``get_rng_state`` returned."""
    if device is None and native.on("autograd.state_kept"):
        return
    if device is None and native.on("autograd.state_of_first_index"):
        device = 0
    _default(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices' generators."""
    return [get_rng_state(index) for index in range(native.library.device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the state of every device's generator."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
