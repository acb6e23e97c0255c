"""A device that is called like a module of torch: `torch.special` is there already, and is no device's."""

import strange
import torch

strange.register("special")
assert not hasattr(torch.special, "device_count")
