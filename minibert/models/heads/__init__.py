"""Heads on the blocks: heads, and what their numbers become, words, scores, labels and sparse vectors."""
