"""What a caller gets, a layer bound to a checkpoint, and what runs it: tiles, threads, texts, the extract.

May import: `families`, `hub`, `files`, `equations`, `threads`, `errors`.
"""
