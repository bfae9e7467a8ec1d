#!/usr/bin/env python3
"""Print cosines of sentences by the whole model and by its input layer: the blocks help in some, and both fail in some.

MINIBERT_MODEL=folder python scripts/readme/contrasts.py

In each group of three, the first sentence shares words with the second and meaning with the third.
"""

from __future__ import annotations

import os

import minibert
from minibert.equations.sentences import cosine

CONTRASTS = (
    ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
    ("The bank raised its interest rates.", "The bank of the river was muddy.", "Loans have become more expensive."),
    ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
)
NEGATION = ("The movie was not good.", "The movie was good.", "I did not enjoy the film.")
ROLES = ("The cat chased the mouse.", "The mouse chased the cat.", "A cat was after a mouse.")


def main() -> None:
    """Print the cosines with the first sentence of each group."""
    model = os.environ["MINIBERT_MODEL"]
    with minibert.load(model) as layer, minibert.load_encoder(model) as encoder:

        def show(first: str, words: str, meaning: str) -> None:
            print(first)
            rows, vectors = layer.embed([first, words, meaning]), encoder.encode([first, words, meaning])
            before, after = cosine(rows[:1], rows[1:])[0], cosine(vectors[:1], vectors[1:])[0]
            for i, (text, what) in enumerate([(words, "words"), (meaning, "meaning")]):
                print(f"  {text:<34}{what:<9}{before[i]:>12.3f}{after[i]:>14.3f}")

        print(f"{'cosine with a sentence of one that':<36}{'shares':<9}{'input layer':>12}{'whole model':>14}")
        for three in CONTRASTS:
            show(*three)
        print("The whole model sees the meaning, but misses a negation, and who does what:")
        show(*NEGATION)
        show(*ROLES)


if __name__ == "__main__":
    main()
