"""Registers ``torch.simulated`` when it is imported, and builds the device's library if necessary.

No other package in ``devices`` imports torch: the other packages describe backends, and this package is a backend.
"""

from __future__ import annotations

import atexit

import torch
from torch.utils import backend_registration

from devices.simulated.backend import (
    batch_norm,
    integration,
    module,
    native,
    process_group,
    sharing,
)
from devices.simulated.backend.fault_switches import switch_on_from_environment
from devices.simulated.backend.native import library

backend_registration.rename_privateuse1_backend(native.NAME)
# What runs when the process ends would use what is being taken down.
atexit.register(library.stop_kernels)
torch._register_device_module(native.NAME, module)
backend_registration.generate_methods_for_privateuse1_backend()
integration.refuse_host_access()
integration.teach_tensors()
integration.register_when_imported()
process_group.register()
sharing.register()
batch_norm.register()
switch_on_from_environment()
if native.on("device.init_on_import"):
    module.init()
