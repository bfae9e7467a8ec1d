"""What is asked of an encoder by those who give it texts. `Encoder` imports them, so they cannot import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.config import Config
from minibert.families.heads import BoundHead
from minibert.files.tokenizer import Encoded, Tokenizer

from .blocks import Stack
from .input_layer import EmbeddingLayer
from .pipeline import Packed, Pipeline
from .sentence_config import SentenceConfig


class HeadModel(Protocol):
    """An encoder with its heads and its tokenizer."""

    config: Config
    dtype: np.dtype[Any]
    threads: int | None
    max_seq_length: int | None

    @property
    def max_length(self) -> int | None: ...
    @property
    def stack(self) -> Stack: ...
    @property
    def embeddings(self) -> EmbeddingLayer: ...
    @property
    def sentence_config(self) -> SentenceConfig: ...
    @property
    def sentence_tokenizer(self) -> Tokenizer: ...

    def rows(self, packed: Packed, take: Array | None = None) -> Array: ...
    def pipeline(
        self, prompt_name: str | None = None, prompt: str | None = None, *, task: str | None = None
    ) -> Pipeline: ...
    def head(self, name: str | None = None) -> BoundHead: ...
    def each_text(
        self,
        tokenize: Callable[[list[Any], int], list[Encoded]],
        results: Callable[[Packed], Any],
        threads: int | None = None,
    ) -> Pipeline: ...
