"""This wing draws and prints for people: text on a terminal, a page for a browser, pictures.

May import: `models` and the wings below it.
"""
