"""The file from which pytest collects the items of all suites. An item is either an op with a
dtype, for which the clauses of one suite are checked, or a case of one clause.

The file contains no items itself; the plugin creates them: see ``pytest_pycollect_makemodule``.
"""
