"""Repro scripts: copies of the functions that made a check, in one file that needs only torch and the device's module."""
