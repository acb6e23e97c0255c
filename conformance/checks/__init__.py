"""The code that all checks share: calls of ops, test cases of device behaviour, time limits and subprocesses."""
