"""``conform init``: asks a device that has no descriptor what it supports, and writes its folder."""
