"""The disk: a folder gives named tables, mapped and not copied, and a tokenizer. Files are written atomically.

May import: `equations`, `errors`.
"""
