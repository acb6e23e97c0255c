"""The commands that work on manifests: canonical form, lint, update, explain and stats."""
