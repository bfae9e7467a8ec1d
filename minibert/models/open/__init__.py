"""From a folder or a Hub name to a bound model: what is found, opened, bound and written."""
