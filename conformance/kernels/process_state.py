"""Finds out what a kernel changes in its process."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from typing import Any

import torch

#: The name of the state of torch's random generator, which a kernel changes if the op draws random numbers.
RANDOM_STATE = "the state of torch's random generator"

#: The modules and classes whose functions a kernel must not replace.
_WATCHED: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.testing": torch.testing,
    "torch.nn.functional": torch.nn.functional,
    "torch.Event": torch.Event,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
    "time": time,
    "statistics": statistics,
    "gc": gc,
}


def fingerprint() -> dict[str, Any]:
    """Returns, by name, the functions of torch and Python that a kernel could replace to deceive the judge, and torch's
    global settings."""
    found: dict[str, Any] = {}
    for name, holder in _WATCHED.items():
        for attribute, value in list(vars(holder).items()):
            if callable(value) and not attribute.startswith("__"):
                found[f"{name}.{attribute}"] = value
    found["the default dtype"] = torch.get_default_dtype()
    found["the use of deterministic algorithms"] = torch.are_deterministic_algorithms_enabled()
    found["the precision of float32 products"] = torch.get_float32_matmul_precision()
    found["the number of threads"] = torch.get_num_threads()
    found["the default device"] = str(torch.get_default_device())
    found["the use of autocast"] = torch.is_autocast_enabled("cpu")
    found["the flushing of subnormal numbers"] = _flushes_subnormals()
    found["sys.settrace"], found["sys.setprofile"] = sys.gettrace(), sys.getprofile()
    return found


def state_of_calls() -> dict[str, Any]:
    """Returns, by name, what no call of a kernel may change, although the import of its file may: the gradient mode, the
    state of torch's random generator, and the working directory."""
    return {
        "the gradient mode": torch.is_grad_enabled(),
        RANDOM_STATE: bytes(torch.get_rng_state().numpy()),
        "the working directory": os.getcwd(),
    }


def _flushes_subnormals() -> bool:
    smallest = torch.tensor([2.0**-149])
    return float(smallest * 1.0) == 0.0


def changed_names(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns the names whose value differs between two states."""
    return [name for name, value in before.items() if not _same_value(now.get(name, value), value)]


def replaced_names(before: dict[str, Any]) -> list[str]:
    """Returns the names whose value has changed since ``before``, an earlier fingerprint."""
    return changed_names(before, fingerprint())


def _same_value(one: Any, other: Any) -> bool:
    return one is other or (not callable(one) and one == other)
