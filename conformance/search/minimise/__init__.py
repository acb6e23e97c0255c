"""The smallest failing example of a failure: searched by hypothesis, in a process of its own."""
