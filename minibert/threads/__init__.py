"""Who computes: how many cores there are, threads that help, and BLAS held to one thread while they do.

May import: threadpoolctl, inside functions; no other wing.
"""
