#!/usr/bin/env python3
"""Show what the order of words does to vectors before attention: next to nothing.

MINIBERT_MODEL=folder python scripts/readme/word_order.py
"""

from __future__ import annotations

import os

import minibert

PAIRS = (("dog bites man", "man bites dog"), ("dog bites man", "a cat sleeps"))


def main() -> None:
    """Print the cosine similarity of each pair."""
    with minibert.load(os.environ["MINIBERT_MODEL"]) as layer:
        print("| text | text | cosine of the mean vectors |")
        print("|---|---|---|")
        for pair in PAIRS:
            first, second = layer.embed(pair, pooling="mean", normalize=True)
            print(f"| {pair[0]} | {pair[1]} | {first @ second:.5f} |")


if __name__ == "__main__":
    main()
