"""When to run: one module a mode. Each has a `run` that returns how the process ends."""
