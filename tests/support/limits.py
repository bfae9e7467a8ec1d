"""The one limit of a child process: a busy machine may take long, a hang is seen all the same."""

CHILD_SECONDS = 600
