"""What every check is made of, for calls of ops and for cases of behaviour."""
