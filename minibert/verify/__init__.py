"""Comparisons: with the reference run live, with a port's file, with printed numbers. torch is imported in functions.

May import: `models` and the packages below it.
"""
