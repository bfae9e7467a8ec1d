"""What a person looks at: text on a terminal, a page for a browser, pictures.

May import: `models` and the wings below it.
"""
