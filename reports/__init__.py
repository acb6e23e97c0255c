"""The results of runs: the record and other files, the gate, the dashboard. Needs neither torch nor the suite."""
