"""What the abacus declares, and what it is known to fail. Apart from the backend, so that listing devices
need not import torch."""
