"""The project's own measure of depth: faults bred systematically, and how many of them the suite notices."""
