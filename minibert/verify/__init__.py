"""A verifier compares: with the reference run live, with a port's file, with printed numbers. torch in functions only.

May import: `models` and the wings below it.
"""
