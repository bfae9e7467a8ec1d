"""How much of texts is left out, because they are longer than a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert.files.tokenizer import Encoded, Texts, listed

from .head_model import HeadModel
from .pipeline import Pipeline


def tokens_cut(
    encoder: HeadModel,
    texts: Texts,
    prompt_name: str | None = None,
    prompt: str | None = None,
    task: str | None = None,
) -> Any:
    """Count the tokens of each text that `encode` leaves out: see `Encoder.tokens_cut`."""
    items, own = listed(texts)[0], encoder.sentence_config
    pipeline, before = encoder.pipeline(prompt_name, prompt, task=task), own.prompt(prompt_name, prompt)
    found = np.zeros(len(items), np.int64)
    for start in range(0, len(items), pipeline.chunk):
        for i, encoded in enumerate(pipeline.tokenize(items[start : start + pipeline.chunk], start), start):
            found[i] = encoded.cut
            if encoded.more:  # the end of a very long text has not been looked at
                (whole,) = encoder.sentence_tokenizer.encode([before + items[i]])
                found[i] = len(whole.input_ids) - len(encoded.input_ids)
    return int(found[0]) if isinstance(texts, str) else found


class CutTexts:
    """Counts the texts that were truncated on their way to vectors."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, pipeline: Pipeline) -> Pipeline:
        """Give the same steps, which are counted."""

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            encoded = pipeline.tokenize(texts, start)
            self.add(encoded)
            return encoded

        return pipeline._replace(tokenize=tokenize)

    def add(self, encoded: Sequence[Encoded]) -> None:
        self.count += sum(each.cut > 0 for each in encoded)
