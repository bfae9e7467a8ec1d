"""A model for many texts: its name and options -> the steps from texts to vectors, and what it was read from.

It is opened from whole files on this machine's disk, fetched from the Hub first where need be: so all processes of a
machine share one map of the weights, and the sha256 of a file says which model it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minibert.files.checkpoint import INDEX, SINGLE
from minibert.files.reading import sha256_of
from minibert.models.run.pipeline import TextPipeline
from minibert.models.sentences.sentence_config import AS_THE_FOLDER_SAYS, SentenceOptions
from minibert.threads.pool import checked_threads

from .load import Opened, named_model, open_model

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder


class TextModel(NamedTuple):
    """An opened model, and its steps from texts to vectors."""

    model: Encoder
    opened: Opened
    pipeline: TextPipeline

    @property
    def result(self) -> str:
        """Say what a text has: one "dense" vector, one of "tokens" each, or one "sparse" vector."""
        return self.model.result

    @property
    def width(self) -> int:
        """The numbers of a vector, a text's or a token's."""
        if self.result == "sparse":
            return len(self.model.embeddings.word_embeddings.weight)
        return self.model.get_embedding_dimension()

    @property
    def compared(self) -> dict[str, Any]:
        """The measure of such vectors, a name in `SIMILARITIES`, and whether each has length 1.

        Those of tokens have a name in `MAXSIMS`.
        """
        own = self.model.sentence_config
        return {"similarity": own.measure, "normalized": own.normalizes()}

    def sha256(self) -> dict[str, str]:
        """The sha256 of every file that was found while the model was opened; so of each that is read."""
        opened, source = self.opened, self.opened.source()
        try:
            shards = {Path(source.tensor(name).file).name: source.tensor(name).file for name in source.names}
        finally:
            source.close()
        for name, file in shards.items():
            if opened.find(name) is None:  # of an adapter alone: the base's
                opened.found[name] = file
        if not opened.find(SINGLE):
            opened.find(INDEX)
        return {name: sha256_of(path) for name, path in sorted(opened.found.items())}


def open_vectors(
    name: str | os.PathLike[str] | None,
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    asked: SentenceOptions = AS_THE_FOLDER_SAYS,
    revision: str | None = None,
    local_files_only: bool = False,
    threads: int | None = None,
    same_bits: bool = False,
    mmap: bool | None = None,
) -> TextModel:
    """Open a model for the vectors of many texts.

    asked, threads, same_bits, mmap: as of `load_encoder`; no bit of a vector depends on `threads` here. Raises as it.
    """
    from .load_encoder import encoder_of

    threads = checked_threads(threads)
    opened = open_model(named_model(name), revision, local_files_only, mmap=mmap, whole=True, saved=True)
    encoder = encoder_of(opened, same_bits=same_bits, asked=asked.checked())
    own, task = encoder.sentence_config, None
    if encoder.result != "dense":  # these models encode queries and documents differently
        task = "document"
        prompt_name = task if prompt_name is None and prompt is None and task in own.prompts else prompt_name
    pipeline = encoder.pipeline(prompt_name, prompt, task=task, threads=threads, held=True)
    return TextModel(encoder, opened, pipeline)
