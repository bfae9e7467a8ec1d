"""The commands of the command line: `declare` adds the arguments, `run` does the work.

Results go to stdout, messages to stderr. At its top a file imports only what `declare` needs; `run` imports the rest.
To add a command: a file with ABOUT, EXAMPLE, declare and run, and its name and line of the help in `minibert.cli`. One
that answers each text with names and numbers is a row of `answers.py`.

May import: every wing.
"""
