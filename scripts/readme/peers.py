#!/usr/bin/env python3
"""Print minibert's sentence vectors beside other packages': size, start, memory, speed, largest difference.

python scripts/readme/peers.py        needs the extra `bench` and the checkpoint of scripts/demo (MINIBERT_MODEL)

Sizes are counted now, with all that a package needs; start, memory and speed are the benchmark's last whole run; the
difference is measured now, on a hundred texts. What would need a model from the Hub is not run.
"""

from __future__ import annotations

import os
import random
from importlib.metadata import PackageNotFoundError

import numpy as np
from figures import figure
from installed_size import NAME, closure

import minibert

PEERS = {  # and by what its vectors differ, where that is not measured
    "minibert": "", "sentence-transformers": "the reference", "fastembed": "-", "model2vec": "another kind: no context",
}  # fmt: skip
WORDS = "the a cat bank river time opens why where I we was not 42 ! ? ,"


def difference() -> str:
    """Give the largest distance of our vectors from sentence-transformers', in units of a vector's length."""
    from sentence_transformers import SentenceTransformer

    chance, folder = random.Random(0), os.environ["MINIBERT_MODEL"]
    texts = [" ".join(chance.choices(WORDS.split(), k=chance.randint(0, 300))) for _ in range(100)]
    with minibert.load_encoder(folder) as encoder:
        ours = encoder.encode(texts)
    theirs = SentenceTransformer(folder, device="cpu").encode(texts)
    apart = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
    return f"{apart.max():.1e}"


def installed(package: str) -> str:
    """Give the size of a package with all that it needs, where it is here."""
    try:
        return f"{sum(closure(NAME if package == 'minibert' else package).values()) / 1e6:,.0f} MB"
    except PackageNotFoundError:
        return "not installed here"


def main() -> None:
    """Print the table."""
    start, peak = "import, load, encode one sentence", "its peak memory"
    print("| package | installed | start, one sentence | peak memory | 16 texts | vectors differ by |")
    print("|---|---|---|---|---|---|")
    for package, apart in PEERS.items():
        rows = ["not run: its models come from a hub", "-", "-"]
        if package in ("minibert", "sentence-transformers"):
            own = "own" if package == "minibert" else "other"
            rows = [
                figure("sentences", what, "sentence-transformers")[own] for what in (start, peak, "encode 16 texts")
            ]
        apart = apart or difference()
        print(f"| {package} | {installed(package)} | {' | '.join(rows)} | {apart} |")


if __name__ == "__main__":
    main()
