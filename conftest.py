"""Names the plugin, so that ``pytest`` in the checkout is the suite."""

pytest_plugins = ["conformance.plugin"]
