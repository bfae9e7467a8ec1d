"""What stands on a terminal: explain, info, which token adds what."""
