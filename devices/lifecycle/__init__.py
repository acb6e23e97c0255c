"""The life of a manifest: its canonical form, lint, update, explain and stats."""
