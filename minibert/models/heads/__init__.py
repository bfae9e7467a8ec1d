"""Heads after the blocks, and their uses: words, scores, labels and sparse vectors."""
