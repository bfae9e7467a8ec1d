"""Counts truncated texts."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from minibert.errors import Option, Text, error_of
from minibert.files.tokenizer import Encoded

from .pipeline import Pipeline


class TruncatedTexts:
    """Counts the texts that were truncated on their way to vectors."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()  # chunks of a static model are tokenized on several threads

    def of(self, pipeline: Pipeline, refused: bool = False) -> Pipeline:
        """Give the same steps, which are counted; `refused`: a text that is truncated raises ValueError."""

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            encoded = pipeline.tokenize(texts, start)
            if refused:
                _refuse(encoded, start)
            self.add(encoded)
            return encoded

        return pipeline._replace(tokenize=tokenize)

    def add(self, encoded: Sequence[Encoded]) -> None:
        with self._lock:
            self.count += sum(each.truncated > 0 for each in encoded)


def length_of(encoded: Encoded) -> int:
    """Count the tokens that a text had before it was truncated."""
    return len(encoded.input_ids) + encoded.truncated


def _refuse(encoded: Sequence[Encoded], start: int) -> None:
    for i, each in enumerate(encoded, start):
        if each.truncated:
            raise error_of(
                ValueError, Text(i), f" has {length_of(each)} tokens, but texts are truncated at "
                f"{len(each.input_ids)}; shorten it, or leave ", Option("truncation", "error"), " out",
            )  # fmt: skip
