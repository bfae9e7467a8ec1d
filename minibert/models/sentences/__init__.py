"""Vectors of texts: the settings of a folder and its modules; encoding, comparing and searching."""
