"""A disk: a folder gives named tables, which are mapped and not copied, and a tokenizer. Files are written atomically.

May import: `equations`, `errors`.
"""
