"""A measure of how deep the suite looks: breeds faults systematically and counts how many turn the gate red."""
