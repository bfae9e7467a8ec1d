"""Vectors of texts, as sentence-transformers gives them for the same folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, Matrix, Vector, normalized
from minibert.errors import CheckpointError, warn
from minibert.files.tokenizer import Encoded, Texts, Tokenizer, listed
from minibert.models.model import Model
from minibert.models.run.blocks import run_model
from minibert.models.run.packing import TILE_ROWS, Packed
from minibert.models.run.pipeline import Pipeline, check_positive, chunked, picked, pooled, rows_of_each
from minibert.models.run.truncated_texts import TruncatedTexts
from minibert.threads.cores import cores
from minibert.threads.pool import checked_threads

from .arguments import (
    OUTPUTS,
    TRUNCATIONS,
    EncodeOptions,
    check_other_arguments,
    check_smaller,
    check_task,
    check_truncation,
    given_once,
    smaller,
)
from .comparing import Given, similarity, similarity_pairwise
from .sentence_config import SentenceConfig

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHUNK = 512  # how many texts are sorted by length together; memory beyond the result is bounded by it


class Sentences(Model):
    """A model whose folder says how texts become vectors."""

    settable = ("max_seq_length",)

    def __init__(self, *model: Any, sentence_config: SentenceConfig, **options: Any) -> None:
        super().__init__(*model, **options)
        self._sentence_config = sentence_config
        self._length_set = False
        self._changed_tokenizer: Tokenizer | None = None
        self._last: tuple[Any, tuple[Any, ...], Any] = None, (), None

    @property
    def max_seq_length(self) -> int | None:
        """At how many tokens `encode` and its kin truncate a text, special tokens among them; None: no limit.

        The folder says so. It can be set to any integer from 1 to `max_length`, or to None for `max_length` itself. A
        call that is running keeps the length it began with. `pickle` and `copy.deepcopy` keep what was set. A folder
        may set its own length for the task of `encode_query` or `encode_document`; that one is used.

        Raises ValueError for a length beyond the position table, or for anything but an integer >= 1.
        """
        return self.sentence_config.longest

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        limit = self.max_length
        if length is not None:
            check_positive("max_seq_length", length)
            if limit is not None and length > limit:
                raise ValueError(f"max_seq_length must be at most {limit}, the position table's rows; found {length}")
        said = (limit, "the position table") if length is None else (int(length), "max_seq_length, which was set")
        self._sentence_config = self.sentence_config._replace(longest=said[0], longest_from=said[1])
        self._length_set = True  # for `pickle`

    def get_embedding_dimension(self) -> int:
        """How many numbers a vector has that `encode` gives. A token's vector before pooling has `dim`."""
        own = self.sentence_config
        return own.dim if own.late else own.width()

    def get_sentence_embedding_dimension(self) -> int:
        """The same as `get_embedding_dimension`, by its older name."""
        return self.get_embedding_dimension()

    @property
    def prompts(self) -> Mapping[str, str]:
        """The folder's prompts, name -> what is put before a text; "query" and "document" are always there."""
        return MappingProxyType(dict(self.sentence_config.prompts))

    @overload
    def encode(
        self, texts: str, prompt_name: str | None = ..., prompt: str | None = ..., *,
        output_value: Literal["sentence_embedding"] = ..., **options: Unpack[EncodeOptions],
    ) -> Vector: ...  # fmt: skip
    @overload
    def encode(
        self, texts: Iterable[str], prompt_name: str | None = ..., prompt: str | None = ..., *,
        output_value: Literal["sentence_embedding"] = ..., **options: Unpack[EncodeOptions],
    ) -> Matrix: ...  # fmt: skip
    @overload
    def encode(
        self, texts: str, prompt_name: str | None = ..., prompt: str | None = ..., *,
        output_value: Literal["token_embeddings"], **options: Unpack[EncodeOptions],
    ) -> Matrix: ...  # fmt: skip
    @overload
    def encode(
        self, texts: Iterable[str], prompt_name: str | None = ..., prompt: str | None = ..., *,
        output_value: Literal["token_embeddings"], **options: Unpack[EncodeOptions],
    ) -> list[Matrix]: ...  # fmt: skip
    @overload
    def encode(self, *texts: Any, **options: Any) -> Any: ...

    def encode(
        self,
        texts: Texts | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        task: str | None = None,
        threads: int | None = None,
        inputs: Texts | None = None,
        sentences: Texts | None = None,
        ranges: ArrayLike | None = None,
        truncation: str = "ignore",
    ) -> Any:
        """Turn texts into vectors as sentence-transformers does: one str -> (dim,), many -> (n, dim), none -> (0, dim).

        The folder says how: modules.json lists pooling, dense layers and norms; other files have the prompts and the
        longest length. A longer text is truncated there: see `truncation` and `tokens_cut`. Without modules.json a
        vector is the mean over the tokens. A folder of a MultiVectorEncoder gives a list of (tokens, dim): see
        `encode_query`, and `encode_document`, which this counts as.

        Weights stored as float16 or bfloat16 are converted: the vectors are those of the model in float32.
        sentence-transformers computes such a folder in its narrow format, unless told otherwise; on MiniLM its numbers
        are then up to 6e-4 (float16) and 4e-3 (bfloat16) of the vector's length from these.

        With some processors, and with `same_bits` of `load_encoder`, a text's vector has the same bits in every call.
        Otherwise the other texts change each number by at most 1e-6 of the vector's length (measured on MiniLM:
        2.6e-7): a matrix product with other rows rounds differently. So may one that BLAS shares between threads.

        prompt_name   one of the folder's prompts, put before each text; without it the folder's default, if it has one
        prompt        a text put before each text; prompt_name is then without effect
        batch_size    without effect: work is split by tokens, about 512 at once or one text, however many texts that is
        output_value  "token_embeddings" gives for each text its tokens' vectors (tokens, dim) before pooling, in a list
        truncate_dim  keep this number of each vector's first numbers; normalize_embeddings comes after it
        task          "query" or "document" takes their longest length where the folder has one
        threads       the largest number of threads; None for what `load_encoder` was told
        precision     "float16", "int8", "uint8", "binary" or "ubinary" quantizes the finished vectors: see
                      `equations.quantized`. Not for token_embeddings
        ranges        (2, dim), the ranges of int8 and uint8, as `equations.ranges_of` gives them of many vectors;
                      without them those of this call's vectors, with a warning where these are fewer than 100
        truncation    of texts that are too long: "ignore" is silent, "warn" says how many there were, "error" raises
                      ValueError that names one
        inputs        sentence-transformers' name for `texts`; sentences: its older one

        convert_to_numpy, convert_to_tensor and device are accepted where they ask for arrays on the CPU.

        Raises TypeError for anything but text, ValueError for an unknown argument or prompt, TokenizerError where there
        is no tokenizer.
        """
        settings = (
            prompt_name, prompt, output_value, normalize_embeddings, truncate_dim, task, threads,
            precision, batch_size, convert_to_numpy, convert_to_tensor, device,
        )  # fmt: skip
        own, last, pipeline = self._last
        if own is not self._sentence_config or not all(map(is_, settings, last)):
            own = self.sentence_config
            check_other_arguments(batch_size, convert_to_numpy, convert_to_tensor, device)
            check_smaller(precision, OUTPUTS[1] if own.late else output_value)
            pipeline = self.pipeline(*settings[:7])
            self._last = own, settings, pipeline  # the next call with the very same settings need not look at them
        if texts is None or inputs is not None or sentences is not None:
            texts = given_once("a str or a list of str", texts=texts, inputs=inputs, sentences=sentences)
        items, _ = listed(texts)
        truncated = None
        if truncation != TRUNCATIONS[0]:
            check_truncation(truncation)
            truncated = TruncatedTexts()
            pipeline = truncated.of(pipeline, refused=truncation == "error")
        found = pipeline.all(items, "encode" if show_progress_bar else "")
        if precision not in (None, "float32") or ranges is not None:
            found = smaller(found, precision, ranges)
        if truncated and truncated.count:
            warn(f"{truncated.count} of {len(items)} texts truncated, which tokens_cut counts: {own.longest_from}")
        return found[0] if isinstance(texts, str) else found

    def encode_stream(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = CHUNK,
        *,
        output_value: str = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task: str | None = None,
        threads: int | None = None,
    ) -> Iterator[Array]:
        """Turn texts into vectors while they come: a generator in, a generator out, a vector (dim,) for each text.

        `batch_size` texts (at most 512) are read, sorted by length and computed before the first of their vectors is
        given, and the next are read after the last of them: with 1 each text is answered at once. Memory is bounded by
        that. What else is passed is as in `encode`, and so is what is raised, when a text is reached.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be many, one after another, found one str; encode takes it")
        check_positive("batch_size", batch_size)
        pipeline = self.pipeline(prompt_name, prompt, output_value, normalize_embeddings, truncate_dim, task, threads)
        found = pipeline.stream(chunked(texts, min(batch_size, CHUNK)))
        return (vector.copy() for vectors in found for vector in vectors)  # a view would keep the whole chunk alive

    def encode_query(
        self, texts: Texts | None = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Encode queries: with the folder's prompt "query", and never its default prompt.

        Where the folder has no such prompt, as many have none, nothing is put before a text: then this is `encode`
        without a prompt. `prompts` and `minibert info` say which there are; `load_encoder(prompts=...)` adds others.
        Of a SparseEncoder's folder they are sparse vectors, as `encode_sparse` gives them; of a MultiVectorEncoder's
        token vectors (tokens, dim), one array for each text, among them those of the mask tokens that fill it up.
        """
        if prompt_name is None and prompt is None:
            prompt_name = "query"
        return self._encode(texts, prompt_name, prompt, **{"task": "query", **options})

    def encode_document(
        self, texts: Texts | None = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Encode documents to be searched: as `encode_query`, with the prompt "document"."""
        if prompt_name is None and prompt is None:
            prompt_name = "document"
        return self._encode(texts, prompt_name, prompt, **{"task": "document", **options})

    def _encode(self, *texts: Any, **options: Any) -> Any:
        return self.encode(*texts, **options)

    @overload
    def tokens_cut(
        self, texts: str, prompt_name: str | None = ..., prompt: str | None = ..., *, task: str | None = ...
    ) -> int: ...
    @overload
    def tokens_cut(
        self, texts: Iterable[str], prompt_name: str | None = ..., prompt: str | None = ..., *, task: str | None = ...
    ) -> Vector: ...

    def tokens_cut(
        self, texts: Texts, prompt_name: str | None = None, prompt: str | None = None, *, task: str | None = None
    ) -> Any:
        """Count the tokens that `encode` leaves out of each text: one str -> an int, many -> (n,) int64.

        A text with its prompt and the special tokens is truncated at `max_seq_length`. What is passed and raised is as
        in `encode`; `prompt_name="query", task="query"` counts for `encode_query`.
        """
        items, pipeline = listed(texts)[0], self.pipeline(prompt_name, prompt, task=task)
        found = np.zeros(len(items), np.int64)
        for start in range(0, len(items), pipeline.chunk):
            for i, encoded in enumerate(pipeline.tokenize(items[start : start + pipeline.chunk], start), start):
                found[i] = encoded.truncated
        return int(found[0]) if isinstance(texts, str) else found

    def pipeline(
        self,
        prompt_name: str | None = None,
        prompt: str | None = None,
        output_value: str = OUTPUTS[0],
        normalize: bool = False,
        truncate_dim: int | None = None,
        task: str | None = None,
        threads: int | None = None,
        held: bool = False,
    ) -> Pipeline:
        """Give the steps of `encode`, for callers with their own loop. What is passed and raised is as there.

        held: no bit of a vector depends on `threads`, even of one text alone: see `computing.compute`.
        """
        if output_value not in OUTPUTS:
            raise ValueError(f"output_value must be {' or '.join(map(repr, OUTPUTS))}, found {output_value!r}")
        check_task(task)
        check_positive("truncate_dim", truncate_dim, or_none=True)
        if elsewhere := self.block_family.elsewhere:
            raise CheckpointError(
                f"sentence-transformers makes vectors of a {self.embeddings.family.model_type} from {elsewhere}, which "
                "is not computed here; the encoder's own hidden states are what a call gives"
            )
        own, tokenizer = self.sentence_config, self.sentence_tokenizer
        if own.late and truncate_dim is not None:
            raise ValueError("truncate_dim is for sentence vectors, and this model gives a vector for each token")
        dim, before = 0 if own.late else own.width(truncate_dim), own.prompt(prompt_name, prompt)
        longest = own.lengths.get(task or "", own.longest)
        fill = own.late.filling(tokenizer, task) if own.late else None
        skip = 0  # tokens of the prompt that are not pooled
        if before and not own.include_prompt:
            (alone,) = tokenizer.encode([before], None, truncation=True, max_length=own.longest)
            # in the real call the special token at the end comes after the text
            skip = len(alone.input_ids) - (bool(alone.input_ids) and tokenizer.is_special(alone.input_ids[-1]))

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            if before:  # anything but a str goes to the tokenizer as it is, whose error says where it is
                texts = [before + text if isinstance(text, str) else text for text in texts]
            encoded = tokenizer.encode(texts, None, truncation=True, max_length=longest, start=start)
            return fill(encoded) if fill else encoded

        if own.late:
            return self.each_text(tokenize, own.late.results(tokenizer, task, normalize), threads, held)

        def pool(rows: Array) -> Array:
            found = [POOLINGS[name](rows, skip) for name in own.poolings]
            return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

        if output_value == "token_embeddings":
            return self.each_text(tokenize, rows_of_each(), threads, held)
        after = (*own.after, lambda x: x[:, :dim], *([normalized] if normalize else []))
        results = pooled(pool, after) if own.picks is None else picked(own.picks, after)
        return self.each_text(tokenize, results, threads, held, dim)

    def each_text(
        self,
        tokenize: Callable[[list[Any], int], list[Encoded]],
        results: Callable[[Packed, Array], Any],
        threads: int | None = None,
        held: bool = False,
        dim: int | None = None,
        take: Callable[[Packed], Array | None] | None = None,
    ) -> Pipeline:
        """Give the steps from texts to one result for each: see `Pipeline`; `take`: as of `blocks.run_model`."""
        threads = self.threads if threads is None else checked_threads(threads)
        layer, stack, most = self.embeddings, self.stack, threads or cores()
        table, inside = layer.steps[0].module.table, threads if stack.blocks else 1
        alone = not stack.blocks and all(step is normalized for step in self.sentence_config.after)

        def compute(encoded: Sequence[Encoded], put: Callable[[Packed, Array], None]) -> None:
            packed = layer.pack(encoded)
            table.expect((packed.ids,))
            if alone:  # no matrix product: BLAS has nothing to do, and no thread waits for its turn
                for tile in packed.tiles(TILE_ROWS):
                    put(tile, layer.rows(tile))
                return
            run_model(layer.rows, stack, packed, put, inside, held, take)

        abreast = 1 if stack.blocks else most
        return Pipeline(tokenize, compute, results, dim, self.dtype, CHUNK, prefetching=most > 1, abreast=abreast)

    def similarity(self, embeddings1: Given, embeddings2: Given, *, normalized: bool = False) -> Array:
        """Compare vectors as the folder says, by cosine where it says nothing: (n, dim), (m, dim) -> (n, m).

        One vector (dim,) counts as (1, dim). The larger, the more alike: "euclidean" and "manhattan" are negative. Both
        may be lists of `SparseVector`, which are compared by dot product where the folder says nothing; or token
        vectors, queries first, which are compared by `equations.sentences.maxsim`: a list of (tokens, dim), or one.

        normalized  both have vectors of length 1 already, as a folder with the module Normalize gives them: a cosine
                    then is one matrix product. Without effect on the other measures, which do not normalize

        Raises TypeError for anything but vectors; ValueError for vectors of two widths, for a vector with NaN or
        infinity, and for `normalized` where the first vector of either has another length.
        """
        return similarity(self.sentence_config.similarity, embeddings1, embeddings2, normalized)

    def similarity_pairwise(self, embeddings1: Given, embeddings2: Given) -> Any:
        """Compare vectors in the same place as the folder says: (n, dim), (n, dim) -> (n,).

        One vector (dim,) is compared with each of the others; two of them give one number. Raises as `similarity`, and
        ValueError for two numbers of vectors.
        """
        return similarity_pairwise(self.sentence_config.similarity, embeddings1, embeddings2)

    @property
    def sentence_config(self) -> SentenceConfig:
        """What the folder says of sentence vectors."""
        self.stack  # noqa: B018  raises where the encoder is closed
        return self._sentence_config

    @property
    def sentence_tokenizer(self) -> Tokenizer:
        """The tokenizer, as the folder changes it: a lowercasing step before it, prefixes as one token each."""
        own = self.sentence_config
        prefixes = own.late.prefixes if own.late else ()
        if not own.lower_case and not prefixes:
            return self.embeddings.tokenizer
        if self._changed_tokenizer is None:
            found = self.embeddings.tokenizer
            found = found.lowercased() if own.lower_case else found
            self._changed_tokenizer = found.with_whole(prefixes)
        return self._changed_tokenizer

    def close(self) -> None:
        """Drop all weights. Arrays handed out stay valid; later calls raise ValueError. Closing twice is fine."""
        super().close()
        self._sentence_config, self._changed_tokenizer = SentenceConfig(), None  # the weights of its dense layers too
        self._last = None, (), None
