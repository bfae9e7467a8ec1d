"""Vectors of whole texts: what a folder says of them, its modules, how they are compared and searched."""
