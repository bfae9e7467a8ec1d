"""`Encoder`: a whole model, the input layer and the blocks after it; and `load_encoder`, which makes one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, UnknownFamilyError
from minibert.families.attention_schemes import Rotary
from minibert.families.block_parts import Blocks
from minibert.families.blocks import BLOCKS
from minibert.families.config import Config
from minibert.families.modules import Embedding
from minibert.families.steps import Inputs
from minibert.files.checkpoint import Checkpoint

from . import sentences
from .attributes import Guarded
from .blocks import Group, Stack, Tile, gather, norming, pack, ready, run_blocks
from .inputs import Preparation
from .layer import EmbeddingLayer
from .load import Opened, TensorBinder, assemble, check_dtype, family_of, load, named_model, open_model
from .recipe import Recipe, read_recipe, transformer_folder
from .texts import check_positive
from .tiles import run_steps

if TYPE_CHECKING:
    from minibert.files.tokenizer import Texts, Tokenizer

NO_BLOCKS = "minibert.load loads the input layer"  # ends the error for a model that has no more


def load_encoder(
    name: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    dtype: str = "float32",
    mmap: bool = True,
) -> Encoder:
    """Load a whole model, the input layer and all blocks: a folder, or a name on the Hub.

    Arguments as of `load`. For a Hub name all weights are fetched into the Hub's own cache, unless they are there.
    float32 weights are mapped and not copied; narrower ones are widened once.

    Raises as `load`; UnknownFamilyError for a model_type that has an input layer here, but no blocks; CheckpointError
    for modules.json or other settings of sentence vectors that ask for what is not computed here.
    """
    check_dtype(dtype)
    opened = open_model(named_model(name), revision, local_files_only, mmap=mmap, weights_folder=transformer_folder)
    return encoder_of(opened, local_files_only, dtype, mmap)


def encoder_of(opened: Opened, local_files_only: bool = False, dtype: str = "float32", mmap: bool = True) -> Encoder:
    """Put a whole model together from its opened parts: see `load_encoder`."""
    family = family_of(opened)
    blocks = BLOCKS.get(family.model_type)
    if blocks is None:
        raise UnknownFamilyError(
            f"{opened.where}: model_type {family.model_type!r} has an input layer here, but no blocks; those with "
            f"blocks are {', '.join(sorted(BLOCKS))}; {NO_BLOCKS}"
        )
    config = blocks.configure(family, opened.config, f"{opened.where}: config.json")
    source = opened.source()
    options: dict[str, Any] = dict(
        revision=opened.commit, local_files_only=local_files_only, dtype=np.dtype(dtype).name, mmap=mmap
    )
    again = partial(load, opened.lasting, **options)
    layer = assemble(family, opened.config, source, opened.find, opened.where, "encoder", np.dtype(dtype), again)
    binder = TensorBinder(config, source, family.prefixes, layer.dtype, opened.where)
    if not binder.stored_under((blocks.path.partition("{i}")[0],)):
        raise CheckpointError(
            f"{opened.where}: there is no tensor of the blocks, only the input layer, as after `minibert extract`; "
            f"name the whole model; {NO_BLOCKS}"
        )
    stack = _bind(blocks, config, binder, layer)
    binder.refuse_leftovers(blocks.checked_prefixes, blocks.unused_endings, "the blocks")
    if isinstance(source, Checkpoint):  # whose maps do not read ahead otherwise, for the input layer's sake
        source.expect(tensor.name for tensor in binder.taken())
    recipe = read_recipe(opened.root, config, layer.dim, layer.max_length, layer.dtype, opened.where)
    return Encoder(layer, blocks, stack, config, partial(load_encoder, opened.lasting, **options), recipe)


def _bind(blocks: Blocks, config: Config, binder: TensorBinder, layer: EmbeddingLayer) -> Stack:
    bound = tuple(blocks.bind(config, binder, i) for i in range(config.integer("num_hidden_layers")))
    others = blocks.last_norm.bind(config, binder, "", config.integer("hidden_size"))
    last = norming(others, blocks.last_norm.path)
    bias: Callable[[int], Array] | None = None
    if blocks.relative:
        sizes = config.integer("relative_attention_num_buckets"), config.integer("num_attention_heads")
        table = binder.table((f"{blocks.relative}.weight",), sizes)
        assert table is not None  # not optional
        others[blocks.relative] = Embedding(table)
        scheme = layer.attention_position
        bias = lambda length: np.asarray(scheme.relative_bias(length, length), layer.dtype)  # noqa: E731
    turned = any(block.attention.rotated for block in bound)
    rotary = layer.attention_position if turned else None
    return Stack(
        bound, config.integer("num_attention_heads"), blocks.causal(config), blocks.last_norm.path, bias,
        rotary if isinstance(rotary, Rotary) else None, others, tuple(map(ready, bound)), last,
    )  # fmt: skip


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

    def __init__(
        self,
        embeddings: EmbeddingLayer,
        blocks: Blocks,
        stack: Stack,
        config: Config,
        again: Callable[[], Encoder],
        recipe: Recipe,
    ) -> None:
        vars(self).update(config=config, dim=embeddings.dim, dtype=embeddings.dtype, block_family=blocks)
        self._layer = embeddings
        self._stack: Stack | None = stack
        self._recipe = recipe
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
        return self.recipe.longest

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        limit = self.max_length
        if length is not None:
            check_positive("max_seq_length", length)
            if limit is not None and length > limit:
                raise ValueError(f"max_seq_length must be at most {limit}, the position table's rows; found {length}")
        self._recipe = self.recipe._replace(longest=limit if length is None else int(length))
        self._length_set = True  # for `pickle`

    def get_embedding_dimension(self) -> int:
        """How many numbers a sentence's vector has: `encode(text).shape[0]`. A token's vector has `dim`."""
        return self.recipe.width()

    def get_sentence_embedding_dimension(self) -> int:
        """The same as `get_embedding_dimension`, by its older name."""
        return self.get_embedding_dimension()

    @property
    def modules(self) -> dict[str, Any]:
        """The modules by their path in the reference's base model, in the order in which they work."""
        stack = self.stack
        found = dict(self._layer.modules)
        for block in stack.blocks:
            found |= {path: module for path, module in block.modules.items() if callable(module)}
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
    ) -> Array:
        """Give the last hidden state: (batch, seq) ids -> (batch, seq, dim), float32 (or the encoder's dtype).

        One sequence of ids (seq,) gives (seq, dim). attention_mask (batch, seq): 1 for a token, 0 for padding, which no
        token sees and whose own rows are zeros; without a mask all are tokens. Sequences of any lengths cost what their
        tokens cost: padding is left out. The last bits depend on how many tokens are computed together: see the class.

        Raises as a call of the input layer does, and ValueError for a sequence of padding alone.
        """
        given = dict(token_type_ids=token_type_ids, position_ids=position_ids, task_type_ids=task_type_ids)
        self.stack  # noqa: B018  raises where the encoder is closed
        inputs, keep, single = self._checked(input_ids, given, attention_mask, inputs_embeds)
        make = np.zeros if np.count_nonzero(keep) < keep.size else np.empty
        y = make((inputs.batch, inputs.seq, self.dim), self.dtype)
        for tile, x in self._tiles(inputs, keep):
            y[tile.rows, tile.places] = x
        return y[0] if single else y

    def packed(
        self, input_ids: ArrayLike, *, attention_mask: ArrayLike | None = None, **ids: Any
    ) -> Iterator[tuple[Tile, Array]]:
        """Give the last hidden state of a batch tile by tile: (tokens, dim), and whose tokens they are."""
        inputs, keep, _ = self._checked(input_ids, ids, attention_mask, None)
        return self._tiles(inputs, keep)

    def _tiles(self, inputs: Inputs, keep: Array) -> Iterator[tuple[Tile, Array]]:
        stack = self.stack
        for tile in pack(keep, stack.heads, holes=stack.by_distance):
            yield tile, run_blocks(stack, self._embedded(inputs, tile), tile)

    def trace(self, input_ids: ArrayLike | None = None, **inputs: Any) -> dict[str, Array]:
        """Give every named intermediate in the order of computation: the input layer's trace, then each block's.

        Takes the arguments of a call. Most keys are module paths of the reference's base model. Other keys:
        `hidden_states.i` and `attentions.i`, numbered as in the reference; `scores`, before mask and softmax;
        `context`, the input of the output projection; `sum`, a module's output plus the residual. Rows of padding are
        zeros, in `attentions.i` too.
        """
        mask, embeds = (inputs.pop(name, None) for name in ("attention_mask", "inputs_embeds"))
        known = {name: inputs.pop(name, None) for name in ("token_type_ids", "position_ids", "task_type_ids")}
        if inputs:
            raise TypeError(f"an encoder takes no {', '.join(inputs)}; leave it out")
        stack = self.stack
        prepared, keep, _ = self._checked(input_ids, known, mask, embeds)
        passed = {name: ids for name, ids in known.items() if ids is not None}
        trace = self._layer.trace(input_ids, attention_mask=mask, inputs_embeds=embeds, **passed)
        trace["hidden_states.0"] = trace[next(reversed(trace))]
        for tile in pack(keep, stack.heads, tokens=max(1, keep.size), holes=stack.by_distance):
            run_blocks(stack, self._embedded(prepared, tile), tile, _Record(trace, tile, prepared))
        return trace

    def _checked(
        self, input_ids: ArrayLike | None, given: dict[str, Any], attention_mask: Any, inputs_embeds: Any
    ) -> tuple[Inputs, Array, bool]:
        """Check and complete what was passed, as the input layer does, and say which tokens are not padding."""
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

    encode = sentences.encode
    encode_stream = sentences.encode_stream
    encode_query = sentences.encode_query
    encode_document = sentences.encode_document
    similarity = sentences.similarity

    @property
    def recipe(self) -> Recipe:
        """What the folder says of sentence vectors."""
        self.stack  # noqa: B018  raises where the encoder is closed
        return self._recipe

    @property
    def sentence_tokenizer(self) -> Tokenizer:
        """The tokenizer, with a lowercasing step before it where the recipe has one."""
        if not self.recipe.lower_case:
            return self.embeddings.tokenizer
        if self._lowercased is None:
            self._lowercased = self.embeddings.tokenizer.lowercased()
        return self._lowercased

    # -- life ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._stack is None:
            return f"<closed Encoder of {self._layer.family.model_type}>"
        from .module_tree import print_encoder

        return print_encoder(self)

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = self.recipe
        return self._again, (), {"max_seq_length": recipe.longest} if self._length_set else None

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.max_seq_length = state["max_seq_length"]

    def close(self) -> None:
        """Drop all weights. Arrays handed out stay valid; later calls raise ValueError. Closing twice is fine."""
        self._stack = None
        self._recipe, self._lowercased = Recipe(), None  # the weights of its dense layers too
        self._layer.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Record:
    """Puts packed rows back into (batch, seq, ...) with zeros for padding, and keeps them under their name."""

    def __init__(self, trace: dict[str, Array], tile: Tile, inputs: Inputs) -> None:
        self.trace, self.tile, self.shape = trace, tile, (inputs.batch, inputs.seq)

    def rows(self, name: str, x: Array) -> None:
        y = np.zeros((*self.shape, *x.shape[1:]), x.dtype)
        y[self.tile.rows, self.tile.places] = x
        self.trace[name] = y

    def pairs(self, name: str, x: Array, group: Group) -> None:
        batch, seq = self.shape
        y = self.trace.setdefault(name, np.zeros((batch, x.shape[1], seq, seq), x.dtype))
        places = self.tile.places[group.tokens].reshape(len(group.texts), group.length)
        for text, own, pairs in zip(group.texts, places, x, strict=True):
            y[text][:, own[:, None], own] = pairs
