"""A device whose module makes itself at home: it changes defaults of torch and of the process."""

import signal
import warnings
from typing import Any

import strange
import torch

strange.register("homely")

_zeros = torch.zeros


def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The vendor's own factory: counts what is made."""
    zeros.made += 1  # type: ignore[attr-defined]
    return _zeros(*args, **kwargs)


zeros.made = 0  # type: ignore[attr-defined]
torch.zeros = zeros
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.set_num_threads(7)
torch.manual_seed(1234)
warnings.simplefilter("error")
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
