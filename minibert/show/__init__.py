"""Text on a terminal, a page for a browser, pictures: all that is drawn or printed for people.

May import: `models` and the folders below it.
"""
