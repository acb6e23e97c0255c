"""Functions that the cases of several suites share: for the allocator's memory, captured graphs, queued work, compiled
code, and programs in a new process."""
