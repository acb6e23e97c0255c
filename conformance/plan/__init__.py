"""The code that selects what a run tests: it makes an ordered list of cells from a device descriptor and the
options."""
