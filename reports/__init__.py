"""What became of a run: its files, its gate, its pages. Needs neither torch nor the suite."""
