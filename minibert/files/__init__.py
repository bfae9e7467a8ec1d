"""A disk: a folder gives named tables, which are mapped and not copied, and a tokenizer; files are written whole.

May import: `equations`, `errors`.
"""
