"""`Encoder`: a whole model, the input layer and the blocks after it; ids -> hidden states, texts -> vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.quantization import check_precision, quantized
from minibert.equations.sentences import POOLINGS, normalized
from minibert.families.block_names import module_path
from minibert.families.block_parts import Blocks
from minibert.families.config import Config
from minibert.families.steps import Inputs
from minibert.files.tokenizer import Encoded, Texts, Tokenizer, listed
from minibert.threads.computing import compute
from minibert.threads.cores import cores
from minibert.threads.pool import checked_threads

from .attributes import Guarded
from .blocks import Stack, run_blocks, run_tiles
from .comparing import Given, similarity, similarity_pairwise
from .input_layer import EmbeddingLayer
from .inputs import Preparation
from .module_tree import print_encoder
from .packing import Tile, batch_tiles, gather, grouped, tile_of, tile_tokens
from .pipeline import Packed, Pipeline, check_positive, chunked
from .recorders import Change, Keeper
from .sentence_config import SentenceConfig
from .tiles import run_steps

if TYPE_CHECKING:
    from minibert.families.heads import BoundHead

    from .comparing import SparseVector
    from .heads import Heads

CHUNK = 512  # how many texts are sorted by length together; memory beyond the result is bounded by it
OUTPUTS = ("sentence_embedding", "token_embeddings")
TASKS = (None, "query", "document")


class Encoder(Guarded):
    """A whole model of one checkpoint: ids -> input layer -> blocks -> one vector a token.

    Made by `minibert.load_encoder`. The input layer's bits are those of `EmbeddingLayer`. In the blocks the last bits
    may change: those of a matrix product depend on its number of rows, so a text's vectors change by about 1e-6
    with the texts around it. Safe to call from many threads at once. A context manager; after `close()` every use
    raises ValueError. `pickle` and `copy.deepcopy` do not copy the weights, as with `EmbeddingLayer`. Only
    `max_seq_length` can be set; any other attribute is an AttributeError.
    """

    settable = ("max_seq_length",)
    config: Config
    dim: int  # of a token's vector; a sentence's may have another: get_embedding_dimension()
    dtype: np.dtype[Any]
    block_family: Blocks
    threads: int | None  # what `load_encoder` was told

    def __init__(
        self,
        embeddings: EmbeddingLayer,
        blocks: Blocks,
        stack: Stack,
        config: Config,
        again: Callable[[], Encoder],
        sentence_config: SentenceConfig,
        heads: Callable[[], Heads],
        threads: int | None = None,
    ) -> None:
        own = dict(config=config, dim=embeddings.dim, dtype=embeddings.dtype, block_family=blocks, threads=threads)
        vars(self).update(own)
        self._layer = embeddings
        self._stack: Stack | None = stack
        self._sentence_config = sentence_config
        self._heads: Callable[[], Heads] | None = heads
        self._length_set = False
        self._lowercased: Tokenizer | None = None
        self._again = again
        self._prepare = Preparation(embeddings.family, embeddings.config, embeddings.steps, embeddings.dtype)

    @property
    def stack(self) -> Stack:
        """The bound blocks and what they share."""
        stack = self._stack  # read once: another thread may close the encoder between two looks
        if stack is None:
            raise ValueError("this encoder is closed; load it again")
        return stack

    @property
    def embeddings(self) -> EmbeddingLayer:
        """The input layer."""
        self.stack  # noqa: B018  raises where the encoder is closed
        return self._layer

    @property
    def max_length(self) -> int | None:
        """How many tokens a call takes: the rows of the position table. `encode` truncates at `max_seq_length`."""
        return self.embeddings.max_length

    @property
    def max_seq_length(self) -> int | None:
        """At how many tokens `encode` and its kin truncate a text, special tokens among them; None: no limit.

        The folder says so. It can be set to any integer from 1 to `max_length`, or to None for `max_length` itself. A
        call that is running keeps the length it began with. `pickle` and `copy.deepcopy` keep what was set. The task
        of `encode_query` or `encode_document` may have a length of its own in the folder, which then holds.

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
        self._sentence_config = self.sentence_config._replace(longest=limit if length is None else int(length))
        self._length_set = True  # for `pickle`

    def get_embedding_dimension(self) -> int:
        """How many numbers a sentence's vector has: `encode(text).shape[0]`. A token's vector has `dim`."""
        return self.sentence_config.width()

    def get_sentence_embedding_dimension(self) -> int:
        """The same as `get_embedding_dimension`, by its older name."""
        return self.get_embedding_dimension()

    @property
    def prompts(self) -> Mapping[str, str]:
        """The folder's prompts, name -> what is put before a text; "query" and "document" are always there."""
        return MappingProxyType(dict(self.sentence_config.prompts))

    @property
    def modules(self) -> dict[str, Any]:
        """The modules by their path in the reference's base model, in the order in which they work."""
        stack = self.stack
        found = dict(self._layer.modules)
        for block in stack.blocks:
            found |= {module_path(key): module for key, module in block.modules.items() if callable(module)}
        return found | stack.others

    def __getitem__(self, path: str) -> Any:
        try:
            return self.modules[path]
        except KeyError:
            raise KeyError(f"this encoder has no {path!r}; its modules are {', '.join(self.modules)}") from None

    # -- numbers ---------------------------------------------------------------------------------------------

    def __call__(
        self,
        input_ids: ArrayLike | None = None,
        *,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        inputs_embeds: ArrayLike | None = None,
        task_type_ids: ArrayLike | None = None,
        change: Mapping[str, Change] | None = None,
    ) -> Array:
        """Give the last hidden state: (batch, seq) ids -> (batch, seq, dim), float32 (or the encoder's dtype).

        One sequence of ids (seq,) gives (seq, dim). attention_mask (batch, seq): 1 for a token, 0 for padding, which no
        token sees and whose own rows are zeros; without a mask all are tokens. Sequences of any lengths cost what their
        tokens cost: padding is left out. The last bits depend on how many tokens are computed together: see the class.

        change: name of an intermediate -> what the run goes on with in its place, an array or a function of the values.
        See `models.changes`; `minibert.knock_out` makes the classic changes.

        Raises as a call of the input layer does, and ValueError for a sequence of padding alone.
        """
        given = dict(token_type_ids=token_type_ids, position_ids=position_ids, task_type_ids=task_type_ids)
        stack = self.stack
        inputs, keep, single = self._checked(input_ids, given, attention_mask, inputs_embeds)
        if change is not None:
            from .changes import run_changed

            y = run_changed(self._layer, stack, inputs, keep, change)
            return y[0] if single else y
        make = np.zeros if np.count_nonzero(keep) < keep.size else np.empty
        y = make((inputs.batch, inputs.seq, self.dim), self.dtype)

        def work(tile: Tile) -> None:
            y[tile.rows, tile.places] = run_blocks(stack, self._embedded(inputs, tile), tile)

        compute(work, batch_tiles(keep, stack.heads, tile_tokens(keep.sum()), stack.by_distance), self.threads)
        return y[0] if single else y

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that the file holds, of `masked_word`, `next_word`, `classes`, `token_classes`, `next_sentence`
        and `replaced_token`."""
        return self._found_heads().names

    def head(self, name: str | None = None) -> BoundHead:
        """Give a head; without a name the one that `architectures` in config.json names, or the only one.

        Raises CheckpointError where the file has no such head, ValueError for an unknown name, or where one of several
        heads has to be named.
        """
        return self._found_heads()[name]

    def _found_heads(self) -> Heads:
        heads = self._heads
        if heads is None:
            raise ValueError("this encoder is closed; load it again")
        return heads()

    def logits(
        self,
        input_ids: ArrayLike | None = None,
        *,
        head: str | None = None,
        attention_mask: ArrayLike | None = None,
        inputs_embeds: ArrayLike | None = None,
        change: Mapping[str, Change] | None = None,
        **ids: ArrayLike | None,
    ) -> Array:
        """Give what a head computes, as the reference's `logits`: float32 (or the encoder's dtype).

        Takes the arguments of a call, `change` too; `head` as in `head()`. `masked_word`, `next_word` and
        `token_classes` give (batch, seq, labels), `replaced_token` (batch, seq), `classes` and `next_sentence` (batch,
        labels). One sequence of ids gives no batch axis. Rows of padding are zeros. Beyond the result little memory is
        taken.

        Raises as a call, and as `head`; ValueError where a head takes one token of each sequence, and that is padding.
        """
        from .heads import batch_logits, ids_of, trace_head

        found = self.head(head)
        inputs, keep, single = self._given(input_ids, ids, attention_mask, inputs_embeds)
        if change is None:
            y = batch_logits(found, self.stack, self._embedded, inputs, keep, self.threads)
        else:
            from .changes import run_changed

            passed = {"last": run_changed(self._layer, self.stack, inputs, keep, change)}
            trace_head(found, passed, ids_of(inputs), keep)
            y = passed["logits"]
        return y[0] if single else y

    def trace(
        self,
        input_ids: ArrayLike | None = None,
        *,
        head: str | None = None,
        change: Mapping[str, Change] | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Give every named intermediate in the order of computation: the input layer's trace, then each block's.

        Takes the arguments of a call. Most keys are module paths of the reference's base model. Other keys:
        `hidden_states.i` and `attentions.i`, numbered as in the reference; `scores`, before mask and softmax;
        `context`, the input of the output projection; `sum`, a module's output plus the residual. A module that several
        blocks use has the block's number behind it: `albert_layers.0[3].ffn`. Norms of each head's queries and keys are
        (batch, seq, heads, head_dim). Rows of padding are zeros, in `attentions.i` too. With the name of a `head` its
        modules follow, for the tokens that it takes, and `logits` at the end. With `change` every value is the one that
        the run went on with, and rows of padding are zeros in the input layer too.
        """
        mask, embeds = (inputs.pop(name, None) for name in ("attention_mask", "inputs_embeds"))
        stack, found = self.stack, None if head is None else self.head(head)
        prepared, keep, _ = self._given(input_ids, inputs, mask, embeds)
        passed = {name: ids for name, ids in inputs.items() if ids is not None}
        trace = self._layer.trace(input_ids, attention_mask=mask, inputs_embeds=embeds, **passed)
        if change is None:
            trace["hidden_states.0"] = trace[next(reversed(trace))]
            for tile in batch_tiles(keep, stack.heads, tokens=max(1, keep.size), holes=stack.by_distance):
                keeper = Keeper(trace, tile, (prepared.batch, prepared.seq))
                run_blocks(stack, self._embedded(prepared, tile), tile, keeper)
        else:
            from .changes import run_changed

            trace = {name: ids for name, ids in trace.items() if name == "position_ids"}
            run_changed(self._layer, stack, prepared, keep, change, trace)
        if found is not None:
            from .heads import ids_of, trace_head

            trace_head(found, trace, ids_of(prepared), keep)
        return trace

    def _given(self, input_ids: Any, ids: dict[str, Any], mask: Any, embeds: Any) -> tuple[Inputs, Array, bool]:
        """As `_checked`, of ids by any name. Raises TypeError for one that no encoder takes."""
        known = dict.fromkeys(("token_type_ids", "position_ids", "task_type_ids"))
        if unknown := ids.keys() - known.keys():
            raise TypeError(f"an encoder takes no {', '.join(sorted(unknown))}; leave it out")
        return self._checked(input_ids, {**known, **ids}, mask, embeds)

    def _checked(
        self, input_ids: ArrayLike | None, given: dict[str, Any], attention_mask: Any, inputs_embeds: Any
    ) -> tuple[Inputs, Array, bool]:
        """Check and complete what was passed, as the input layer does, and say which tokens are not padding."""
        if self.stack.rotary is not None and given["position_ids"] is not None:
            raise TypeError(
                "this encoder turns queries and keys by each token's place; it takes no position_ids, leave it out"
            )
        inputs, single = self._prepare(input_ids, given, attention_mask, 0, inputs_embeds)
        shape = (inputs.batch, inputs.seq)
        if attention_mask is None:
            return inputs, np.ones(shape, bool), single
        mask = np.asarray(attention_mask).reshape(shape)
        keep = mask != 0
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError(
                "attention_mask must hold 1 for a token and 0 for padding; an additive mask is not accepted"
            )
        empty = np.flatnonzero(~keep.any(axis=1)).tolist()
        if inputs.seq and empty:
            raise ValueError(
                f"attention_mask[{empty[0]}] is 0 everywhere, but a sequence needs a token: attention over padding "
                "alone has no meaning; leave that sequence out"
            )
        return inputs, keep, single

    def _embedded(self, inputs: Inputs, tile: Tile) -> Array:
        """The input layer's rows of one tile: (tokens, dim)."""
        steps = self._layer.steps
        x: Array = np.empty((len(tile.rows), self.dim), self.dtype)
        run_steps(steps, gather(inputs, tile), x[None], steps[0].module.table.shape[1])
        return x

    # -- text ------------------------------------------------------------------------------------------------

    def tokenize(self, texts: Texts, text_pair: Texts | None = None, **options: Any) -> dict[str, Any]:
        """Turn one text or many into a batch of ids: see `EmbeddingLayer.tokenize`."""
        return self.embeddings.tokenize(texts, text_pair, **options)

    def tokens(self, ids: ArrayLike) -> Any:
        """Give the token strings of ids: see `EmbeddingLayer.tokens`."""
        return self.embeddings.tokens(ids)

    # -- sentences -------------------------------------------------------------------------------------------

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
    ) -> Any:
        """Turn texts into vectors as sentence-transformers does: one str -> (dim,), many -> (n, dim), none -> (0, dim).

        The folder says how: modules.json lists pooling, dense layers and norms; other files have the prompts and the
        longest length. A longer text is truncated there without a message: see `tokens_cut`. Without modules.json a
        vector is the mean over the tokens.

        Weights stored as float16 or bfloat16 are widened: the vectors are those of the model in float32.
        sentence-transformers computes such a folder in its narrow format, unless told otherwise; on MiniLM its numbers
        are then up to 6e-4 (float16) and 4e-3 (bfloat16) of the vector's length from these.

        The other texts of a call change each number of a vector by at most 1e-6 of the vector's length (measured on
        MiniLM: 2.6e-7): a matrix product with other rows rounds differently. So may, on some processors, one that BLAS
        shares between threads.

        prompt_name   one of the folder's prompts, put before each text; without it the folder's default, if it has one
        prompt        a text put before each text; prompt_name is then without effect
        batch_size    without effect: work is cut by tokens, about 512 at once or one text, however many texts that is
        output_value  "token_embeddings" gives for each text its tokens' vectors (tokens, dim) before pooling, in a list
        truncate_dim  so many first numbers of each vector; normalize_embeddings comes after it
        task          "query" or "document" takes their longest length where the folder has one
        threads       the largest number of threads; None for what `load_encoder` was told
        precision     "float16", "int8", "uint8", "binary" or "ubinary" makes smaller vectors of those that all else
                      gives: see `equations.quantized`. The ranges of int8 and uint8 are those of this call's vectors;
                      for others too keep `equations.ranges_of`. Not for token_embeddings
        inputs        sentence-transformers' name for `texts`; sentences: its older one

        convert_to_numpy, convert_to_tensor and device may be passed by habit, as arrays on the CPU.

        Raises TypeError for anything but text, ValueError for an unknown argument or prompt, TokenizerError where there
        is no tokenizer.
        """
        _refuse_habits(convert_to_numpy, convert_to_tensor, device)
        precision = _precision(precision, output_value)
        check_positive("batch_size", batch_size)
        pipeline = self.pipeline(prompt_name, prompt, output_value, normalize_embeddings, truncate_dim, task, threads)
        texts = _given_once(texts=texts, inputs=inputs, sentences=sentences)
        items, _ = listed(texts)
        found = pipeline.all(items, "encode" if show_progress_bar else "")
        found = found if precision == "float32" else quantized(found, precision)
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
        """`encode` for what somebody looks for: with the folder's prompt "query", and never its default prompt."""
        if prompt_name is None and prompt is None:
            prompt_name = "query"
        return self.encode(texts, prompt_name, prompt, **{"task": "query", **options})

    def encode_document(
        self, texts: Texts | None = None, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """`encode` for what is looked through: with the folder's prompt "document", and never its default prompt."""
        if prompt_name is None and prompt is None:
            prompt_name = "document"
        return self.encode(texts, prompt_name, prompt, **{"task": "document", **options})

    def tokens_cut(
        self, texts: Texts, prompt_name: str | None = None, prompt: str | None = None, *, task: str | None = None
    ) -> Any:
        """Count the tokens that `encode` leaves out of each text: one str -> an int, many -> (n,) int64.

        A text with its prompt and the special tokens is truncated at `max_seq_length`. What is passed and raised is as
        in `encode`; `prompt_name="query", task="query"` counts for `encode_query`.
        """
        from .cut_texts import tokens_cut

        return tokens_cut(self, texts, prompt_name, prompt, task)

    def pipeline(
        self,
        prompt_name: str | None = None,
        prompt: str | None = None,
        output_value: str = OUTPUTS[0],
        normalize: bool = False,
        truncate_dim: int | None = None,
        task: str | None = None,
        threads: int | None = None,
        same_bits: bool = False,
    ) -> Pipeline:
        """Give the steps of `encode`, for callers with their own loop. What is passed and raised is as there.

        `same_bits`: no bit of a vector depends on `threads`, even of one text alone: see `computing.compute`.
        """
        if output_value not in OUTPUTS:
            raise ValueError(f"output_value must be {' or '.join(map(repr, OUTPUTS))}, found {output_value!r}")
        if task not in TASKS:
            raise ValueError(f"task must be None, 'query' or 'document', found {task!r}")
        if truncate_dim is not None:
            check_positive("truncate_dim", truncate_dim)
        own, tokenizer = self.sentence_config, self.sentence_tokenizer
        dim, before, longest = own.width(truncate_dim), own.prompt(prompt_name, prompt), own.longest_of(task)
        skip = 0  # tokens of the prompt that are not pooled
        if before and not own.include_prompt:
            (alone,) = tokenizer.encode([before], None, truncation=True, max_length=own.longest)
            # in the real call the special token at the end comes after the text
            skip = len(alone.input_ids) - (bool(alone.input_ids) and tokenizer.is_special(alone.input_ids[-1]))

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            if before:  # anything but a str goes to the tokenizer as it is, whose error says where it is
                texts = [before + text if isinstance(text, str) else text for text in texts]
            return tokenizer.encode(texts, None, truncation=True, max_length=longest, start=start)

        def pool(rows: Array) -> Array:
            return np.concatenate([POOLINGS[name](rows, skip) for name in own.poolings], axis=1)

        tokens = output_value == "token_embeddings"
        after = (*own.after, lambda x: x[:, :dim], *([normalized] if normalize else []))
        return self.each_text(tokenize, self.rows, threads, same_bits)._replace(
            pool=None if tokens else pool,
            after=() if tokens else after,
            dim=dim,
            whole=False,
        )

    def each_text(
        self,
        tokenize: Callable[[list[Any], int], list[Encoded]],
        results: Callable[[Packed], Any],
        threads: int | None = None,
        same_bits: bool = False,
    ) -> Pipeline:
        """Give the steps from texts to other results than vectors: `results` gives one for each text of a tile."""
        threads = self.threads if threads is None else checked_threads(threads)

        def over_cores(work: Callable[[Packed], None], packed: Packed) -> None:
            tiles = packed.tiles(tile_tokens(len(packed.ids)))
            if results == self.rows and self.stack.widens:
                compute(partial(self._together, work), grouped(list(tiles), threads or cores()), threads, same_bits)
            else:
                compute(work, tiles, threads, same_bits)

        return Pipeline(
            tokenize, results, None, (), 0, self.dtype, CHUNK, over_cores, typed=self.embeddings.adds_types,
            alone=(threads or cores()) == 1, whole=True,
        )  # fmt: skip

    def rows(self, packed: Packed, take: Array | None = None) -> Array:
        """Take the tokens of texts through the whole model: their last hidden state (tokens, dim).

        `take`: which of the packed tokens are asked for; only they leave the last block, (taken, dim).
        """
        stack = self.stack
        return run_blocks(stack, self._layer.rows(packed), tile_of(packed.lengths, stack.heads), take=take)

    def _together(self, work: Callable[..., None], tiles: Sequence[Packed]) -> None:
        """Do `work` with the rows of each tile, all of which pass a block before its weights give way to the next's."""
        stack = self.stack
        found = run_tiles(stack, [(self._layer.rows(tile), tile_of(tile.lengths, stack.heads)) for tile in tiles])
        for tile, x in zip(tiles, found, strict=True):
            work(tile, x)

    def similarity(self, embeddings1: Given, embeddings2: Given, *, normalized: bool = False) -> Array:
        """Compare vectors as the folder says, by cosine where it says nothing: (n, dim), (m, dim) -> (n, m).

        One vector (dim,) counts as (1, dim). The larger, the more alike: "euclidean" and "manhattan" are negative. Both
        may be lists of `SparseVector`, which are compared by dot product where the folder says nothing.

        normalized  both have vectors of length 1 already, as a folder with the module Normalize gives them: a cosine
                    then is one matrix product. Without effect on the other measures, which do not normalize

        Raises TypeError for anything but vectors; ValueError for vectors of two widths, for a vector with NaN or
        infinity, and for `normalized` where the first vector of either has another length.
        """
        return similarity(self._measure(), embeddings1, embeddings2, normalized)

    def similarity_pairwise(self, embeddings1: Given, embeddings2: Given) -> Any:
        """Compare vectors in the same place as the folder says: (n, dim), (n, dim) -> (n,).

        One vector (dim,) is compared with each of the others; two of them give one number. Raises as `similarity`, and
        ValueError for two numbers of vectors.
        """
        return similarity_pairwise(self._measure(), embeddings1, embeddings2)

    def _measure(self) -> str | None:
        own = self.sentence_config
        return own.similarity if own.kind else None

    @property
    def sentence_config(self) -> SentenceConfig:
        """What the folder says of sentence vectors."""
        self.stack  # noqa: B018  raises where the encoder is closed
        return self._sentence_config

    @property
    def sentence_tokenizer(self) -> Tokenizer:
        """The tokenizer, with a lowercasing step before it where the folder has one."""
        if not self.sentence_config.lower_case:
            return self.embeddings.tokenizer
        if self._lowercased is None:
            self._lowercased = self.embeddings.tokenizer.lowercased()
        return self._lowercased

    # -- words -----------------------------------------------------------------------------------------------

    def fill(self, text: Texts, k: int = 5) -> Any:
        """Guess the words that masks hide: `encoder.fill("The capital of France is [MASK].")`.

        One text gives a list with one entry for each mask, in order; a list of texts gives a list of such lists. An
        entry is a list of the k likeliest tokens, best first, each a dict with the names of transformers' `fill-mask`:
        `token_str`, the token as text; `score`, its probability; `token`, its id. Of several masks each is guessed by
        itself. The mask is the tokenizer's: "[MASK]" of BERT, "<mask>" of RoBERTa.

        Raises CheckpointError where the file has no head `masked_word`, ValueError for a text without a mask, or one
        that is too long, TypeError for anything but text.
        """
        from .prediction import fill

        return fill(self, text, k)

    def next_words(self, text: Texts, k: int = 5) -> Any:
        """Guess the next word: `encoder.next_words("The meaning of life is")`.

        One text gives the list of the k likeliest tokens, as an entry of `fill`; a list of texts gives a list of such
        lists. A token that begins a new word begins with a space.

        Raises as `fill`, of the head `next_word`; ValueError for a text without a token.
        """
        from .prediction import next_words

        return next_words(self, text, k)

    def complete(self, text: str, tokens: int = 20, temperature: float = 0.0, seed: int = 0) -> str:
        """Write a text on, and give it with what comes after it: at most so many tokens.

        It ends sooner after a token that config.json names as `eos_token_id`. Temperature 0 takes the likeliest token
        each time. A higher one chooses by chance, `p = softmax(logits / temperature)`, the same for the same `seed`.
        The keys and values of earlier tokens are kept, so each new token costs one token's work.

        Raises as `next_words`; ValueError where text and tokens go beyond the position table.
        """
        from .prediction import complete

        return complete(self, text, tokens, temperature, seed)

    # -- heads on texts --------------------------------------------------------------------------------------

    def predict(
        self,
        pairs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        *,
        threads: int | None = None,
    ) -> Any:
        """Score pairs of texts as sentence-transformers' CrossEncoder does: one pair -> a number, many -> (n,).

        A model of several labels gives (labels,) and (n, labels). The head `classes` gives the logits; what is done to
        them is what the folder says, else a sigmoid for one label and nothing for more. Of a pair that is too long the
        longer text is truncated first, without a message: see `max_seq_length`.

        prompt_name, prompt  as in `encode`; put before the first text of each pair
        batch_size           without effect, as in `encode`
        activation_fn        instead of the folder's: a function of the logits (n, labels), such as lambda x: x
        apply_softmax        over several labels, after the activation
        threads              as in `encode`

        Raises TypeError for anything but pairs, ValueError for a folder of another use, CheckpointError for a file
        without that head or an activation that is not computed here, TokenizerError where there is no tokenizer.
        """
        from .reranker import predict

        _refuse_habits(convert_to_numpy, convert_to_tensor, device)
        check_positive("batch_size", batch_size)
        bar = "predict" if show_progress_bar else ""
        return predict(self, pairs, prompt_name, prompt, activation_fn, bool(apply_softmax), bar, threads)

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        device: Any = None,
    ) -> list[dict[str, Any]]:
        """Order documents by how well they answer a query, the best first, as sentence-transformers' CrossEncoder.

        -> a dict for each: corpus_id, its number among the documents; score; and text, with `return_documents`. Of
        equal scores the first document comes first. `top_k`: so many at most. What else is passed, and raised, is as in
        `predict`; ValueError too for a model of several labels.
        """
        from .reranker import rank

        _refuse_habits(True, False, device)
        check_positive("batch_size", batch_size)
        bar = "rank" if show_progress_bar else ""
        return rank(
            self, query, documents, top_k, return_documents,
            prompt_name=prompt_name, prompt=prompt, activation_fn=activation_fn, shown_as=bar,
        )  # fmt: skip

    def classify(self, texts: Texts, k: int | None = None) -> Any:
        """Give the labels of texts with their probabilities, the likeliest first: the head `classes` on each text.

        One str -> a list of `Label(label, probability)`, many -> a list of such lists. `k`: so many labels at most.
        config.json names them (`id2label`). The probabilities are a softmax; of one label, or with problem_type
        multi_label_classification, a sigmoid of each. Longer texts are truncated: see `max_seq_length`.

        Raises TypeError for anything but text, CheckpointError for a file without that head, ValueError for
        problem_type regression, TokenizerError where there is no tokenizer.
        """
        from .labels import classify

        return classify(self, texts, k)

    def entities(self, texts: Texts) -> Any:
        """Give the spans of a text that have a label, in their order: the head `token_classes` on each token.

        One str -> a list of `Entity(label, text, start, end, probability)`, many -> a list of such lists. The text is
        text[start:end] of what was passed. Tokens are joined as transformers' token-classification pipeline does with
        aggregation_strategy="simple"; the probability is their mean. Longer texts are truncated: see `max_seq_length`.

        Raises TypeError for anything but text, CheckpointError for a file without that head, TokenizerError where there
        is no tokenizer.
        """
        from .labels import entities

        return entities(self, texts)

    def encode_sparse(
        self,
        texts: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        *,
        max_active_dims: int | None = None,
    ) -> Any:
        """Turn texts into sparse vectors as sentence-transformers' SparseEncoder does (SPLADE).

        One str -> `SparseVector(ids, weights)`, many -> a list of them: what is not zero of a vector of the
        vocabulary's length; `decode` names the words. A weight is the largest log(1 + relu(logit)) over
        the text's tokens, of the head `masked_word`, or as the folder says.

        max_active_dims  so many of the largest weights are kept; None: as the folder says
        batch_size       without effect, as in `encode`

        Raises as `encode`, and CheckpointError for a file without that head.
        """
        from .sparse import encode_sparse

        check_positive("batch_size", batch_size)
        bar = "encode_sparse" if show_progress_bar else ""
        return encode_sparse(self, texts, prompt_name, prompt, max_active_dims, bar)

    def decode(self, vectors: SparseVector | Sequence[SparseVector], k: int | None = None) -> Any:
        """Name the words of sparse vectors with their weights, the largest first: one -> [(token, weight), ...].

        Many -> a list of such lists. `k`: so many words at most. Of equal weights the smaller id comes first.

        Raises TypeError for anything but what `encode_sparse` gives, ValueError for a k below 1.
        """
        from .sparse import decode

        return decode(self, vectors, k)

    # -- life ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._stack is None:
            return f"<closed Encoder of {self._layer.family.model_type}>"
        return print_encoder(self._layer, self.block_family, self.stack)

    def __reduce__(self) -> tuple[Any, ...]:
        own = self.sentence_config
        return self._again, (), {"max_seq_length": own.longest} if self._length_set else None

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.max_seq_length = state["max_seq_length"]

    def close(self) -> None:
        """Drop all weights. Arrays handed out stay valid; later calls raise ValueError. Closing twice is fine."""
        self._stack = self._heads = None
        self._sentence_config, self._lowercased = SentenceConfig(), None  # the weights of its dense layers too
        self._layer.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given_once(**given: Texts | None) -> Texts:
    """Give the texts, which have several names. Raises TypeError unless one is used."""
    found = [value for value in given.values() if value is not None]
    if len(found) != 1:
        raise TypeError(
            f"texts must be a str or a list of str, passed once, as {', '.join(given)}; found {len(found) or 'none'}"
        )
    return found[0]


def _precision(precision: str | None, output_value: str) -> str:
    """Give the precision's name. Raises ValueError for an unknown one, and for another than float32 of tokens."""
    precision = "float32" if precision is None else precision
    check_precision(precision)
    if precision != "float32" and output_value == OUTPUTS[1]:
        raise ValueError(f"precision {precision!r} is for sentence vectors; leave it out with {OUTPUTS[1]}")
    return precision


def _refuse_habits(convert_to_numpy: Any, convert_to_tensor: Any, device: Any) -> None:
    """Refuse arguments of sentence-transformers that ask for something else than arrays of float32 on the CPU."""
    advice = "this encoder gives NumPy arrays on the CPU; leave it out"
    if convert_to_numpy is not True:
        raise ValueError(f"convert_to_numpy must be True, found {convert_to_numpy!r}: {advice}")
    if convert_to_tensor is not False:
        raise ValueError(f"convert_to_tensor must be False, found {convert_to_tensor!r}: {advice}")
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device must be None or 'cpu', found {device!r}: {advice}")
