"""Computing: one packed batch of texts, its tiles and threads, the blocks, and what watches or changes a run."""
