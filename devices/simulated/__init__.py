"""The simulated device: a PrivateUse1 backend that can be built on every Linux machine and into which faults can be
planted."""
