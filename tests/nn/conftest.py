"""The first backward of a process starts autograd's threads, as many as there are devices: the simulated one must be there."""

from __future__ import annotations

import importlib

importlib.import_module("devices.simulated.backend")
