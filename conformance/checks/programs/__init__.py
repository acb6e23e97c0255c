"""Random programs: the languages of their instructions, the drawing and shrinking of programs, and what they cover."""
