"""Text for a terminal: explain, info, which token adds what."""
