"""Random search beyond the layouts that every plan uses, and the pinned examples that it found (failures that later
runs check again)."""
