"""The CPU that every build of torch has."""
