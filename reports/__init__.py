"""The results of test runs: their record and report files, the gate and the dashboard. Imports neither torch nor the
suite."""
