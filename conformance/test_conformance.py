"""The file from which pytest collects the items of all suites. An item is an op and dtype with its clauses of a suite,
or a case of one clause.

The file contains no items itself; the plugin creates them: see ``pytest_pycollect_makemodule``.
"""
