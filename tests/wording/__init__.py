"""The texts that users read: where they are, which words they avoid, and a sample of them for a reader to judge."""
