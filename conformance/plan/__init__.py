"""The code that selects the cells of a run: it makes an ordered list of cells from a device descriptor and the
options."""
