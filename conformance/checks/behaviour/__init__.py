"""Functions that the cases of several suites share, about the allocator's memory, captured graphs, queued work, and
programs in a new process."""
