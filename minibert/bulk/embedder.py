"""`Embedder`: what an engine for many machines calls on each batch of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minibert.files.tokenizer import listed
from minibert.models.open.load import is_folder, named_model
from minibert.models.open.vectors import TextModel, check_kind, open_vectors
from minibert.models.run.attributes import Guarded
from minibert.threads.pool import checked_threads


class Embedder(Guarded):
    """A callable that adds vectors to a batch of rows: a dict of columns in, a dict of columns out.

    The batch's columns stay; `output_column`, a new one, is added: float32 (rows, dim). Only names and options are
    stored: a pickle has under 4 kB, and a worker opens the model at its first batch. Weights are mapped, so the workers
    of one machine share them. Safe to call from many threads.

    model         a name on the Hub, or a folder that every worker sees under the same path; None is MINIBERT_MODEL
    vectors       "sentence", what `Encoder.encode` gives; or "input", the mean over the input layer's rows
    text_column   the column with the texts: a list, or a NumPy, Arrow, pandas or Polars column of str
    truncation    with vectors="input", truncate texts that are too long instead of raising ValueError
    prompt_name, prompt    as in `encode`
    max_seq_length         as of `Encoder`: a longer text is truncated there; None keeps the folder's
    revision      name a commit where workers start at different times: a branch may move between
    local_files_only       as in `load`
    same_bits     as of `load_encoder`: a text has the same vector, to the last bit, in any batch
    threads       the largest number of threads, as in `load_encoder`: 1 where an engine starts a worker for each core

    Raises at once ValueError for another kind of vectors; in a worker what `load` and `load_encoder` raise, ValueError
    and TypeError for a batch or a row that is not right.

    >>> Embedder("sentence-transformers/all-MiniLM-L6-v2")
    Embedder('sentence-transformers/all-MiniLM-L6-v2', vectors='sentence', text_column='text', output_column='vector')
    """

    model: str
    vectors: str
    text_column: str
    output_column: str
    options: dict[str, Any]

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        vectors: str = "sentence",
        text_column: str = "text",
        output_column: str = "vector",
        *,
        truncation: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_seq_length: int | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        same_bits: bool = False,
        threads: int | None = None,
    ) -> None:
        check_kind(vectors, prompt_name, prompt, max_seq_length)
        name = named_model(model)
        # a worker may start in another working directory
        path = str(Path(name).expanduser().absolute()) if is_folder(name) else os.fspath(name)
        options = dict(
            truncation=truncation,
            prompt_name=prompt_name,
            prompt=prompt,
            max_seq_length=max_seq_length,
            revision=revision,
            local_files_only=local_files_only,
            same_bits=same_bits,
            threads=checked_threads(threads),
        )
        vars(self).update(
            model=path, vectors=vectors, text_column=text_column, output_column=output_column, options=options
        )
        self._opened: TextModel | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch must be a dict of columns, found {type(batch).__name__}; let the engine give it so, as in "
                'batch_format="numpy"'
            )
        if self.text_column not in batch:
            raise ValueError(f"the batch has no column {self.text_column!r}; it has {', '.join(map(repr, batch))}")
        if self.output_column in batch:
            raise ValueError(
                f"the batch has a column {self.output_column!r} already; name another one with output_column"
            )
        texts = batch[self.text_column]
        if isinstance(texts, str) or getattr(texts, "ndim", 1) != 1:
            found = "one str" if isinstance(texts, str) else f"an array of shape {texts.shape}"
            raise TypeError(f"column {self.text_column!r} must be many texts, found {found}; pass batches, not rows")
        texts = listed(texts)[0]
        opened = self._opened
        if opened is None:  # two threads may both open it; one of the two is kept
            opened = self._opened = open_vectors(self.model, self.vectors, **self.options)
        return {**batch, self.output_column: opened.pipeline.all(texts)}

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in ("vectors", "text_column", "output_column"))
        return f"Embedder({self.model!r}, {', '.join(given)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}
