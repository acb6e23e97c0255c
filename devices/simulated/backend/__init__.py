"""Registers ``torch.simulated`` when it is imported, and builds the device's library if necessary.

No other package in ``devices`` imports torch: the other packages describe backends, and this package is a backend.
"""

from __future__ import annotations

import atexit

import torch
from torch.utils import backend_registration

from devices.simulated.backend import build, native

backend_registration.rename_privateuse1_backend(native.NAME)
native.library = library = build.library()

# These ask the library, some while they are imported.
from devices.simulated.backend import integration, module  # noqa: E402
from devices.simulated.faults import switch_on_from_environment  # noqa: E402

module.Gate = library.Gate
# What runs when the process ends would use what is being taken down.
atexit.register(library.stop_kernels)
torch._register_device_module(native.NAME, module)
backend_registration.generate_methods_for_privateuse1_backend()
integration.refuse_host_access()
integration.teach_tensors()
integration.register_when_imported()
switch_on_from_environment()
if native.on("device.init_on_import"):
    module.init()
