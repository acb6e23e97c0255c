"""Tests of the programs of the compile suite, and of the simulated device's compiler."""
