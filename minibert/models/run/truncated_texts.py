"""Counts truncated texts."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from minibert.files.tokenizer import Encoded

from .pipeline import Pipeline


class TruncatedTexts:
    """Counts the texts that were truncated on their way to vectors."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()  # chunks of a static model are tokenized on several threads

    def of(self, pipeline: Pipeline) -> Pipeline:
        """Give the same steps, which are counted."""

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            encoded = pipeline.tokenize(texts, start)
            self.add(encoded)
            return encoded

        return pipeline._replace(tokenize=tokenize)

    def add(self, encoded: Sequence[Encoded]) -> None:
        with self._lock:
            self.count += sum(each.truncated > 0 for each in encoded)
