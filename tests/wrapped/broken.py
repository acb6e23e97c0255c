"""A badly broken device: the wrapped one with a dozen causes, some hundred failing cells a dtype."""

from __future__ import annotations

from dataclasses import replace

from tests.wrapped import registry
from tests.wrapped.causes import CAUSES
from tests.wrapped.descriptor import DESCRIPTOR as WRAPPED

registry.plant_at({kernel: cause.effect for cause in CAUSES for kernel in cause.kernels})

DESCRIPTOR = replace(WRAPPED, name="broken", title="The wrapped device with a dozen causes")
