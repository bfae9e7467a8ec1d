"""Text for a terminal: explain, info, the contribution of each token."""
