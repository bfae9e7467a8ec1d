"""A network: a name on the Hub gives a commit, its small files, and tables of which only the needed bytes are fetched.

May import: `files`, `equations`, `errors`.
"""
