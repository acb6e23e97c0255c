"""The simulated device: a PrivateUse1 backend that every machine can build, and that can be told to misbehave."""
