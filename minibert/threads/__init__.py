"""Threads: the number of cores, helping threads, and BLAS held to one thread while they compute.

May import: threadpoolctl, inside functions; nothing else of minibert.
"""
