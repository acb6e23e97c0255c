"""Importing this makes the device: builds its library where needed, and registers ``torch.simulated``.

The one room of ``devices`` that imports torch: it is a backend, not a description of one.
"""

from __future__ import annotations

import torch
from torch.utils import backend_registration

from devices.simulated.backend import build, module
from devices.simulated.faults import switch_on_from_environment

backend_registration.rename_privateuse1_backend("simulated")
library = build.library()
module.attach(library)
torch._register_device_module("simulated", module)
backend_registration.generate_methods_for_privateuse1_backend()
module.refuse_host_access()
switch_on_from_environment()
