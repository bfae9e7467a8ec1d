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
    ("The movie was not good.", "The movie was good.", "I did not enjoy the film."),
    ("The cat chased the mouse.", "The mouse chased the cat.", "A cat was after a mouse."),
)
SEEN = 3  # so many of them the whole model sees


def main() -> None:
    """Print the cosines with the first sentence of each group."""
    model = os.environ["MINIBERT_MODEL"]
    with minibert.load(model) as layer, minibert.load_encoder(model) as encoder:
        print(f"{'cosine with a sentence of one that':<36}{'shares':<9}{'input layer':>12}{'whole model':>14}")
        for number, texts in enumerate(CONTRASTS):
            if number == SEEN:
                print("The whole model sees the meaning, but misses a negation, and who does what:")
            rows, vectors = layer.embed([*texts]), encoder.encode([*texts])
            before, after = cosine(rows[:1], rows[1:])[0], cosine(vectors[:1], vectors[1:])[0]
            print(texts[0])
            for i, what in enumerate(("words", "meaning")):
                print(f"  {texts[i + 1]:<34}{what:<9}{before[i]:>12.3f}{after[i]:>14.3f}")


if __name__ == "__main__":
    main()
