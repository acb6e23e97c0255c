"""Random search beyond the covering set, and what it found pinned into every later plan."""
