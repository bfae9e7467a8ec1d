"""Layers and encoders bound to a checkpoint, and the code that runs them: tiles, threads, texts, the extract.

May import: `families`, `hub`, `files`, `equations`, `threads`, `errors`.
"""
