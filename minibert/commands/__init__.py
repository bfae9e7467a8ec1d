"""The commands of the command line: `declare` adds the arguments, `run` runs the command.

Results are printed on stdout, messages on stderr. The top of a file imports only the modules that `declare` needs;
`run` imports the rest. To add a command: a file with ABOUT, EXAMPLE, declare and run, and its name and line of the help
in `minibert.cli`. A file of several commands has COMMANDS instead, and is listed in FILES of `minibert.cli`. A command
that prints names and numbers below each text is a row of `answers.py`.

May import: everything.
"""
