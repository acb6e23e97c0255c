"""The isolation of cells: after a crash, a hang or an error that leaves the device unusable, only the cell that caused
the fault fails, and all other cells still run."""
