"""Vectors of texts, as sentence-transformers gives them for the same folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any, Literal, TypeVar, overload

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, Matrix, Vector, normalized
from minibert.errors import CheckpointError, Text, error_of
from minibert.files.tokenizer import Encoded, Texts, Tokenizer, listed
from minibert.models.model import Model
from minibert.models.run.attributes import hinted
from minibert.models.run.blocks import run_model
from minibert.models.run.packing import TILE_ROWS, Packed
from minibert.models.run.pipeline import Pipeline, check_positive, chunked, finite, pooled, token_vectors
from minibert.threads.cores import cores
from minibert.threads.pool import checked_threads

from .arguments import OUTPUTS, EncodeOptions, given_once, like, quantize, shows, taken
from .comparing import Given, similarity, similarity_pairwise
from .sentence_config import SentenceConfig

S = TypeVar("S", bound="Sentences")
Prompt = str | None  # its name, then its text
OfText = Literal["sentence_embedding"]
Tokens = Literal["token_embeddings"]
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
        """The numbers of a vector that `encode` gives. A token's vector before pooling has `dim`."""
        own = self.sentence_config
        return own.dim if own.late else own.width()

    @property
    def prompts(self) -> Mapping[str, str]:
        """The folder's prompts, name -> the words before a text; "query" and "document" are always there."""
        return MappingProxyType(dict(self.sentence_config.prompts))

    @overload
    def encode(self, texts: str, *prompt: Prompt, output_value: OfText = ..., **options: Any) -> Vector: ...
    @overload
    def encode(self, texts: Iterable[str], *prompt: Prompt, output_value: OfText = ..., **options: Any) -> Matrix: ...
    @overload
    def encode(self, texts: str, *prompt: Prompt, output_value: Tokens, **options: Any) -> Matrix: ...
    @overload
    def encode(self, texts: Iterable[str], *prompt: Prompt, output_value: Tokens, **options: Any) -> list[Matrix]: ...
    @overload
    def encode(self, *texts: Any, **options: Any) -> Any: ...

    @shows(EncodeOptions)
    def encode(
        self,
        texts: Texts | None = None,
        *given: Any,
        inputs: Texts | None = None,
        sentences: Texts | None = None,
        **options: Any,
    ) -> Any:
        """Turn texts into vectors as sentence-transformers does: one str -> (dim,), many -> (n, dim), none -> (0, dim).

        The options, in its order or by name, are those of `EncodeOptions`: `prompt_name`, `prompt`, `batch_size`,
        `show_progress_bar`, `output_value`, `precision`, ... `inputs` is its name for `texts`; `sentences` its older
        one.

        The folder says how: modules.json lists pooling, dense layers and norms; other files have the prompts and the
        longest length. A longer text is truncated there: see `tokens_cut`. Of equal texts among 512 one goes through
        the model. Without modules.json a vector is the mean over the tokens. A folder of a MultiVectorEncoder gives a
        list of (tokens, dim): see `encode_query`, and `encode_document`, which this counts as.

        Weights stored as float16 or bfloat16 are converted: the vectors are those of the model in float32, whatever
        `torch_dtype` a folder asks for. sentence-transformers computes in such a narrow format, unless told otherwise;
        on MiniLM its numbers are then up to 6e-4 (float16) and 4e-3 (bfloat16) of the vector's length from these.

        The other texts may change each number by 1e-6 of the vector's length (measured on MiniLM: 2.6e-7), and so may
        threads of BLAS: see `same_bits` of `load_encoder`.

        Raises TypeError for anything but text and for an unknown option, ValueError for an unknown value or prompt,
        TokenizerError where there is no tokenizer.
        """
        try:
            asked = EncodeOptions(*given, **options)
        except TypeError:
            asked = taken(EncodeOptions, self.encode, given, options)  # raises, in the method's words
        own, last, pipeline = self._last
        if own is not self._sentence_config or not all(map(is_, asked, last)):
            own, pipeline = self.sentence_config, self.pipeline(*asked)
            self._last = own, asked, pipeline  # the next call with the very same options need not look at them
        if texts is None or inputs is not None or sentences is not None:
            texts = given_once("a str or a list of str", texts=texts, inputs=inputs, sentences=sentences)
        items, _ = listed(texts)
        found = pipeline.all(items, "encode" if asked.show_progress_bar else "")
        if asked.precision not in (None, "float32"):
            found = quantize(found, asked.precision, asked.ranges)
        return found[0] if isinstance(texts, str) else found

    @like(encode)
    def encode_query(
        self, texts: Texts | None = None, prompt_name: Prompt = None, prompt: Prompt = None, *given: Any, **options: Any
    ) -> Any:
        """Encode queries: with the folder's prompt "query", and never its default prompt.

        Where the folder has no such prompt, as many have none, nothing is put before a text: then this is `encode`
        without a prompt. `prompts` and `minibert info` say which there are; `load_encoder(prompts=...)` adds others.
        Of a SparseEncoder's folder they are sparse vectors, as `encode_sparse` gives them; of a MultiVectorEncoder's
        token vectors (tokens, dim), one array for each text, among them those of the mask tokens that fill it up.
        """
        return self._for_task("query", texts, prompt_name, prompt, given, options)

    @like(encode)
    def encode_document(
        self, texts: Texts | None = None, prompt_name: Prompt = None, prompt: Prompt = None, *given: Any, **options: Any
    ) -> Any:
        """Encode documents to be searched: as `encode_query`, with the prompt "document"."""
        return self._for_task("document", texts, prompt_name, prompt, given, options)

    def _for_task(self, task: str, texts: Any, prompt_name: Prompt, prompt: Prompt, given: Any, options: Any) -> Any:
        prompt_name = task if prompt_name is None and prompt is None else prompt_name
        return self._encode(texts, prompt_name, prompt, *given, **{"task": task, **options})

    def _encode(self, *texts: Any, **options: Any) -> Any:
        return self.encode(*texts, **options)

    @overload
    def tokens_cut(self, texts: str, prompt_name: Prompt = ..., prompt: Prompt = ..., task: Prompt = ...) -> int: ...
    @overload
    def tokens_cut(
        self, texts: Iterable[str], prompt_name: Prompt = ..., prompt: Prompt = ..., task: Prompt = ...
    ) -> Vector: ...

    def tokens_cut(self, texts: Any, prompt_name: Prompt = None, prompt: Prompt = None, task: Prompt = None) -> Any:
        """Count the tokens that `encode` leaves out of each text: one str -> an int, many -> (n,) int64.

        A text with its prompt and the special tokens is truncated at `max_seq_length`. `prompt_name="query",
        task="query"` counts for `encode_query`. Raises as `encode`.
        """
        found: list[int] = []
        pipeline = self.pipeline(prompt_name, prompt, task=task)
        for chunk in chunked(listed(texts)[0], pipeline.chunk):
            found += [each.truncated for each in pipeline.tokenize(chunk, len(found))]
        return found[0] if isinstance(texts, str) else np.array(found, np.int64)

    def pipeline(self, *given: Any, held: bool = False, **options: Any) -> Pipeline:
        """Give the steps of `encode`, for callers with their own loop. What is passed and raised is as there.

        held: no bit of a vector depends on `threads`, even of one text alone: see `computing.compute`.
        """
        own, asked = self.sentence_config, EncodeOptions(*given, **options)
        asked.check(late=own.late is not None)
        if elsewhere := self.block_family.elsewhere:
            raise CheckpointError(
                f"sentence-transformers makes vectors of a {self.embeddings.family.model_type} from {elsewhere}, which "
                "is not computed here; the encoder's own hidden states are what a call gives"
            )
        dim = 0 if own.late else own.width(asked.truncate_dim)  # raises for a folder of another use
        tokenize, skip = self._tokenizing(asked)
        if own.late:
            results = own.late.results(self.sentence_tokenizer, asked.task, asked.normalize_embeddings)
            return self.each_text(tokenize, results, asked.threads, held)
        if asked.output_value == OUTPUTS[1]:
            return self.each_text(tokenize, token_vectors((finite,)), asked.threads, held)

        def pool(rows: Array) -> Array:
            found = [POOLINGS[name](rows, skip) for name in own.poolings]
            return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

        def pooled_tokens(texts: list[Any], start: int) -> list[Encoded]:
            encoded = tokenize(texts, start)
            for i, each in enumerate(encoded, start):
                if len(each.input_ids) <= skip:  # the largest of no numbers is no number
                    beyond = " beyond its prompt" if skip else ""
                    raise error_of(
                        ValueError, Text(i), f" has no token{beyond}, and pooling 'max' needs one; leave it out"
                    )
            return encoded

        after = (*own.after, lambda x: x[:, :dim], *([normalized] if asked.normalize_embeddings else []), finite)
        read = pooled_tokens if "max" in own.poolings and not own.picks else tokenize
        return self.each_text(read, pooled(pool, after, own.picks), asked.threads, held, dim)

    def _tokenizing(self, asked: EncodeOptions) -> tuple[Callable[[list[Any], int], list[Encoded]], int]:
        """Give the step from texts to ids, and how many first tokens of each are the prompt's and not pooled."""
        own, task = self.sentence_config, asked.task
        table, before = own.table(task), own.prompt(asked.prompt_name, asked.prompt)
        tokenizer = table.tokenizer() if table else self.sentence_tokenizer
        longest = table.longest if table else own.lengths.get(task or "", own.longest)
        fill = own.late.filling(tokenizer, task) if own.late else None
        skip = 0
        if before and not own.include_prompt:
            (alone,) = tokenizer.encode([before], None, truncation=True, max_length=own.longest)
            # in the real call the special token at the end comes after the text
            skip = len(alone.input_ids) - (bool(alone.input_ids) and tokenizer.is_special(alone.input_ids[-1]))

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            if before:  # anything but a str goes to the tokenizer as it is, whose error says where it is
                texts = [before + text if isinstance(text, str) else text for text in texts]
            encoded = tokenizer.encode(texts, None, True, longest, start)
            return fill(encoded) if fill else encoded

        return tokenize, skip

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
            table.expect((packed.inputs.ids["input_ids"],))
            if alone:  # no matrix product: BLAS has nothing to do, and no thread waits for its turn
                for tile in packed.tiles(TILE_ROWS):
                    put(tile, layer.rows(tile))
                return
            run_model(layer.rows, stack, packed, put, inside, held, take)

        return Pipeline(tokenize, compute, results, dim, self.dtype, CHUNK, most > 1, 1 if stack.blocks else most)

    @hinted
    def similarity(self, embeddings1: Given, embeddings2: Given) -> Array:
        """Compare vectors as the folder says, by cosine where it says nothing: (n, dim), (m, dim) -> (n, m).

        One vector (dim,) counts as (1, dim). The larger, the more alike: "euclidean" and "manhattan" are negative. Both
        may be lists of `SparseVector`, which are compared by dot product where the folder says nothing; or token
        vectors, queries first, which are compared by `equations.sentences.maxsim`: a list of (tokens, dim), or one.

        Raises TypeError for anything but vectors; ValueError for vectors of two widths, for a vector with NaN or
        infinity, and for integers of an eighth of the model's width or less: bits, which `minibert.search` compares.
        """
        own = self.sentence_config
        return similarity(own.similarity, embeddings1, embeddings2, own.dim)

    @hinted
    def similarity_pairwise(self, embeddings1: Given, embeddings2: Given) -> Any:
        """Compare vectors in the same place as the folder says: (n, dim), (n, dim) -> (n,).

        One vector (dim,) is compared with each of the others; two of them give one number. Raises as `similarity`, and
        ValueError for two numbers of vectors.
        """
        own = self.sentence_config
        return similarity_pairwise(own.similarity, embeddings1, embeddings2, own.dim)

    @property
    def sentence_config(self) -> SentenceConfig:
        """The folder's settings of sentence vectors."""
        self.stack  # noqa: B018  raises where the encoder is closed
        return self._sentence_config

    @property
    def sentence_tokenizer(self) -> Tokenizer:
        """The tokenizer, as the folder changes it: a lowercasing step before it, prefixes as one token each."""
        own = self.sentence_config
        if self._changed_tokenizer is None:
            found = self.embeddings.tokenizer
            found = found.lowercased() if own.lower_case else found
            self._changed_tokenizer = found.with_whole(own.late.prefixes if own.late else ())
        return self._changed_tokenizer

    def with_settings(self: S, tokenizer: Tokenizer | None = None, **changes: Any) -> S:
        """Share this model's weights with one that has other fields of `SentenceConfig`, or another tokenizer.

        Closing the one does not close the other.
        """
        made, own = object.__new__(type(self)), self.sentence_config._replace(**changes)
        vars(made).update(vars(self), _sentence_config=own, _changed_tokenizer=tokenizer, _last=(None, (), None))
        return made

    def close(self) -> None:
        """Drop all weights. Arrays handed out stay valid; later calls raise ValueError. Closing twice is fine."""
        super().close()
        self._sentence_config, self._changed_tokenizer = SentenceConfig(), None  # the weights of its dense layers too
        self._last = None, (), None
