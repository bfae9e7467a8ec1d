"""The benchmark: `python scripts/bench`."""
