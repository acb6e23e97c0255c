"""What cases of several suites share: the allocator's memory, captured graphs, queued work, and programs in a fresh process."""
