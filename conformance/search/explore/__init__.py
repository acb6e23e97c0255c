"""Random search beyond the covering set of layouts, and the pinned examples that it found."""
