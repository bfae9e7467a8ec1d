#!/usr/bin/env python3
"""Print how often a static model made of all-MiniLM-L6-v2 answers right, and how often the whole model does.

MINIBERT_MODEL=folder python scripts/readme/static_models.py        2 minutes

A query is the first sentence of a text; its answer is the rest of the text, among the rests of all texts. Every Python
has the texts: its help topics, and the docstrings of its standard library. A last kind of query is a word of the
model's vocabulary; its answer is the same word with an s. A cell has two shares of the queries: for how many the first
result is right, and for how many one of the first ten.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from contrasts import CONTRASTS
from numpy.typing import NDArray

import minibert

Pairs = list[tuple[str, str]]
Encode = Callable[[list[str]], NDArray[np.float32]]
SHORTEST = 40  # characters of a rest
DOCSTRINGS = 3000


def split(text: str) -> tuple[str, str] | None:
    """Return a text's first sentence and the rest, if both are long enough."""
    first, _, rest = re.sub(r"([.!?]) |$", "\\1\0", " ".join(text.split()), count=1).partition("\0")
    return (first, rest.strip()) if len(first) >= 10 and len(rest.strip()) >= SHORTEST else None


def unlike(pairs: Iterable[tuple[str, str] | None]) -> Pairs:
    """Leave out pairs if one half occurred before: its earlier partner would be a right answer too."""
    found: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        if pair is not None and not found.keys() & set(pair):
            found |= dict.fromkeys(pair, pair)
    return list(dict.fromkeys(found.values()))


def topics_of_help() -> Pairs:
    """Read the help topics, without their headings."""
    return unlike(split(re.sub(r"^.*\n\*+\n", "", topics[name])) for name in sorted(topics))


def docstrings() -> Pairs:
    """Read the docstrings in the sources: nothing is imported."""
    sources = (path.read_text(encoding="utf-8") for path in sorted(Path(os.__file__).parent.glob("*.py")))
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    documented = (node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    return unlike(split(ast.get_docstring(node) or "") for node in documented)[:DOCSTRINGS]


def plurals(folder: str) -> Pairs:
    words = json.loads(Path(folder, "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return [(word, word + "s") for word in words if len(word) > 2 and word.isalpha() and word + "s" in words]


def ranked(encode: Encode, pairs: Pairs) -> NDArray[np.int64]:
    """Sort all rests for each query, the nearest first."""
    queries, rests = (encode([pair[i] for pair in pairs]).astype(np.float32) for i in (0, 1))
    return np.argsort(-(queries @ rests.T), axis=1, kind="stable")


def right(encode: Encode) -> int:
    """Count the contrasts of contrasts.py in which the sentence of the same meaning is nearer."""
    found = (encode(list(three)) for three in CONTRASTS)
    return sum(bool(first @ meaning > first @ words) for first, words, meaning in found)


def main() -> None:
    """Print the table, a row for each kind of pairs."""
    folder = os.environ["MINIBERT_MODEL"]
    kinds = {
        "help topics, first sentence -> rest": topics_of_help(),
        "docstrings, first sentence -> rest": docstrings(),
        "word -> word + s": plurals(folder),
    }
    with tempfile.TemporaryDirectory() as made, minibert.load_encoder(folder) as encoder:
        minibert.distill(encoder, f"{made}/static")
        ways: dict[str, Encode] = {
            "MiniLM": encoder.encode,
            "static": minibert.load_encoder(f"{made}/static").encode,
            "input layer": lambda some: encoder.embeddings.embed(some, pooling="mean", normalize=True, truncation=True),
        }
        print(f"| Python {platform.python_version()} | pairs | {' | '.join(ways)} | static finds MiniLM's first |")
        print("|---" * (len(ways) + 3) + "|")
        for kind, pairs in kinds.items():
            orders = {name: ranked(encode, pairs) for name, encode in ways.items()}
            cells = []
            for order in orders.values():
                place = np.argmax(order == np.arange(len(pairs))[:, None], axis=1)
                cells.append(f"{np.mean(place < 1):.0%}, {np.mean(place < 10):.0%}")
            same = orders["static"] == orders["MiniLM"][:, :1]
            cells.append(f"{same[:, 0].mean():.0%}, {same[:, :10].any(axis=1).mean():.0%}")
            print(f"| {kind} | {len(pairs):,} | {' | '.join(cells)} |")
        cells = [f"{right(encode)} of {len(CONTRASTS)}" for encode in ways.values()]
        print(f"| the five contrasts above, meaning before words | {len(CONTRASTS)} | {' | '.join(cells)} | |")


if __name__ == "__main__":
    main()
