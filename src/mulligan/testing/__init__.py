"""Public test tools: conformance suites anyone can run against their own backend."""
