"""The simulated device: a PrivateUse1 backend that can be built on every machine and made to misbehave."""
