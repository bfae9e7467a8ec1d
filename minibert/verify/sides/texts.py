"""Texts that tell: of each kind of mistake at least one of them gives another vector.

`TEXTS` is what a port or a server is asked for, from `data/texts.jsonl`: each line has a text and the reason why it is
there. The order is part of it: a file of vectors has one row for each.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from minibert.files.reading import arriving_texts

from .numpy_files import opened


class Telling(NamedTuple):
    """A text, and the reason why it is here."""

    text: str
    why: str


_LINES = (Path(__file__).parents[1] / "data/texts.jsonl").read_text("utf-8").splitlines()
TEXTS: tuple[Telling, ...] = tuple(Telling(**json.loads(line)) for line in _LINES)


def read_texts(path: Path) -> list[str]:
    """Read texts: of a file .jsonl the "text" of each line, of another each line. Raises ValueError for a bad line."""
    if path.suffix.lower() in (".parquet", ".csv", ".tsv", ".arrow"):
        raise ValueError(f"{path}: texts are read of lines or of JSON lines; write its texts to a file, one a line")
    texts = list[str]()
    for number, text in enumerate(chain.from_iterable(arriving_texts(str(opened(path)))), 1):
        try:
            texts.append(json.loads(text)["text"] if path.suffix.lower() == ".jsonl" else text)
            if not isinstance(texts[-1], str):
                raise ValueError(f'"text" is {texts[-1]!r:.40}')
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f'{path}, line {number}: expected a text, in JSON an object with "text" ({error})'
            ) from None
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts
