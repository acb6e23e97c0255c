"""Importing this makes the device: builds its library where needed, and registers ``torch.simulated``.

The one room of ``devices`` that imports torch: it is a backend, not a description of one.
"""

from __future__ import annotations

import torch

from devices.simulated.backend import build, module
from devices.simulated.faults import switch_on_from_environment

torch.utils.rename_privateuse1_backend("simulated")
library = build.library()
module.attach(library)
torch._register_device_module("simulated", module)
torch.utils.generate_methods_for_privateuse1_backend()
switch_on_from_environment()
