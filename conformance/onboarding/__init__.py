"""``conform init``: finds out what a device without a descriptor supports, and writes a folder with the device's
descriptor and manifest."""
