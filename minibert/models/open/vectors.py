"""A model for many texts: its name and options -> the steps from texts to vectors, and what it was read from.

Both kinds of vectors are opened from whole files on this machine's disk, fetched from the Hub first where need be: so
all processes of a machine share one map of the weights, and the sha256 of a file says which model it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from minibert.errors import CheckpointError, Option, UnknownFamilyError, error_of, parts_of
from minibert.files.checkpoint import INDEX, SINGLE
from minibert.files.reading import sha256_of
from minibert.models.run.pipeline import Pipeline
from minibert.models.sentences.folder import SPARSE
from minibert.models.sentences.sentence_options import AS_THE_FOLDER_SAYS, SentenceOptions
from minibert.threads.cores import cores
from minibert.threads.pool import checked_threads

from .load import Opened, assemble, family_of, load, named_model, open_model

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.input_layer import EmbeddingLayer

KINDS = ("sentence", "input")

ADVICE = (
    Option("vectors", "input"),
    " takes the input layer alone: for each text the mean over its tokens' rows before any attention, which know no "
    "context",
)


class TextModel(NamedTuple):
    """An opened model, and what makes its steps from texts to vectors."""

    kind: str
    model: Encoder | EmbeddingLayer
    opened: Opened
    make: Callable[[], Pipeline]

    @property
    def pipeline(self) -> Pipeline:
        """The steps as the model is set now."""
        return self.make()

    @property
    def result(self) -> str:
        """Say what a text has: one "dense" vector, one of "tokens" each, or one "sparse" vector."""
        own = None if self.kind == "input" else cast("Encoder", self.model).sentence_config
        return "dense" if own is None or (own.kind != SPARSE and not own.late) else "tokens" if own.late else "sparse"

    @property
    def width(self) -> int:
        """The numbers of a vector, a text's or a token's."""
        if self.result == "sparse":
            return len(cast("Encoder", self.model).embeddings.word_embeddings.weight)
        return self.pipeline.dim or cast("Encoder", self.model).get_embedding_dimension()

    @property
    def compared(self) -> dict[str, Any]:
        """The measure of such vectors, a name in `SIMILARITIES`, and whether each has length 1.

        Those of tokens have a name in `MAXSIMS`.
        """
        own = None if self.kind == "input" else cast("Encoder", self.model).sentence_config
        if own is not None and self.result == "sparse":
            return {"similarity": own.similarity or "dot", "normalized": False}
        return {"similarity": own.measure if own else "cosine", "normalized": own is not None and own.normalizes()}

    def sha256(self) -> dict[str, str]:
        """The sha256 of every file that was found while the model was opened; so of each that is read."""
        opened, source = self.opened, self.opened.source()
        try:
            shards = {Path(source.tensor(name).file).name for name in source.names}
        finally:
            source.close()
        for name in shards if opened.find(SINGLE) else (INDEX, *shards):
            opened.find(name)
        return {name: sha256_of(path) for name, path in sorted(opened.found.items())}


def open_vectors(
    name: str | os.PathLike[str] | None,
    vectors: str = "sentence",
    *,
    truncation: bool = False,
    prompt_name: str | None = None,
    prompt: str | None = None,
    asked: SentenceOptions = AS_THE_FOLDER_SAYS,
    revision: str | None = None,
    local_files_only: bool = False,
    threads: int | None = None,
    same_bits: bool = False,
) -> TextModel:
    """Open a model for sentence vectors, or for vectors of its input layer alone (mean over the tokens).

    asked, threads, same_bits: as of `load_encoder`; no bit of a vector depends on `threads` here. Vectors of the input
    layer always have the same bits.

    Raises as `load` and `load_encoder`; for a model without blocks, the error says what can be done.
    """
    check_kind(vectors, prompt_name, prompt, asked)
    threads = checked_threads(threads)
    name = named_model(name)
    if vectors == "input":
        opened = open_model(name, revision, local_files_only, whole=True)
        layer = assemble(opened, opened.source(), family_of(opened), again=opened.again(load))
        layer.tokenizer  # noqa: B018  raises where there is none, before anything is read
        pipeline = partial(layer.pipeline, truncation=truncation, threads=threads, at_once=(threads or cores()) > 1)
        return TextModel(vectors, layer, opened, pipeline)
    from .load_encoder import INPUT_LAYER, encoder_of

    opened = open_model(name, revision, local_files_only, whole=True, saved=True)
    try:
        encoder = encoder_of(opened, same_bits=same_bits, asked=asked.checked())
    except (CheckpointError, UnknownFamilyError) as error:
        *parts, end = parts_of(error)
        if end != INPUT_LAYER:
            raise
        raise error_of(type(error), *parts, *ADVICE) from None
    own, task = encoder.sentence_config, None
    if own.late or own.kind == SPARSE:  # whose queries and documents differ
        task = "document"
        prompt_name = task if prompt_name is None and prompt is None and task in own.prompts else prompt_name
    make: Callable[..., Pipeline] = encoder.sparse_steps if own.kind == SPARSE else encoder.pipeline
    steps = partial(make, prompt_name, prompt, task=task, threads=threads, held=True)
    steps()  # raises for a prompt that is not there, before any text is read
    return TextModel(vectors, encoder, opened, steps)


def check_kind(
    vectors: str, prompt_name: str | None, prompt: str | None, asked: SentenceOptions = AS_THE_FOLDER_SAYS
) -> None:
    """Refuse another kind of vectors, and options that it does not have. Raises ValueError."""
    if vectors not in KINDS:
        raise ValueError(f"vectors must be {' or '.join(map(repr, KINDS))}, found {vectors!r}")
    if vectors == "input" and (prompt_name is not None or prompt is not None):
        names = Option("prompt_name"), " and ", Option("prompt"), " out with ", Option("vectors", "input")
        raise error_of(ValueError, "prompts are for sentence vectors; leave ", *names)
    given = asked.checked().given()
    if vectors == "input" and given:
        advice = " is for sentence vectors; leave it out with ", Option("vectors", "input")
        raise error_of(ValueError, Option(next(iter(given))), *advice)
