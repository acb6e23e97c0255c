"""Where pytest finds the items of all suites: an op and dtype with its clauses of a suite, or a case of one clause.

The plugin names them: see ``pytest_pycollect_makemodule``.
"""
