"""The command line's commands, a file each: what it takes (`declare`), what it does (`run`).

Data goes to stdout, talk to stderr. A file imports at its top what it needs to declare its arguments, and the rest when
it runs. To add one: a file with ABOUT, EXAMPLE, declare and run, and its name in `minibert.cli`.

May import: every wing.
"""
