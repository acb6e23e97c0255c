"""The commands on manifests: canonical form, lint, update, explain and stats."""
