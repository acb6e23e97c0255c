"""torch's autocast lists for all devices, a call of each listed op, and the policy that a device shows for it."""
