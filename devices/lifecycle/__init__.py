"""The functions behind the commands for manifests: canonical form, lint, update, explain and stats."""
