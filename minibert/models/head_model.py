"""What is asked of an encoder by those who give its heads texts. `Encoder` imports them, so they cannot import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from minibert.families.config import Config
from minibert.families.heads import BoundHead
from minibert.files.tokenizer import Encoded, Tokenizer

from .blocks import Stack
from .heads import Model
from .input_layer import EmbeddingLayer
from .pipeline import Packed, Pipeline
from .sentence_config import SentenceConfig


class HeadModel(Model, Protocol):
    """An encoder with its heads and its tokenizer."""

    config: Config
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

    def head(self, name: str | None = None) -> BoundHead: ...
    def each_text(
        self,
        tokenize: Callable[[list[Any], int], list[Encoded]],
        results: Callable[[Packed], Any],
        threads: int | None = None,
    ) -> Pipeline: ...
