"""What is to be run: from a descriptor and the options to an ordered list of cells."""
