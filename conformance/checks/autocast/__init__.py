"""The ops in torch's autocast lists for all devices, the arguments for a call of each op, and functions that find out
which list a device follows for an op."""
