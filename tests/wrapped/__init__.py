"""A device for the harness' own tests: CPU memory behind a tensor subclass that can be told to misbehave."""
