"""`Model`: ids -> hidden states and logits, by the input layer, the blocks and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.families.parts.block_names import module_path
from minibert.families.parts.block_parts import Blocks
from minibert.families.parts.config import Config
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.modules import module_list
from minibert.families.parts.steps import Inputs
from minibert.files.tokenizer import Texts
from minibert.models.heads.heads import Heads, batch_logits, ids_of, trace_head
from minibert.models.run.attributes import OfModules, advice, hinted
from minibert.models.run.blocks import Stack, run_blocks, run_model
from minibert.models.run.changes import Change, Recorder, run_changed
from minibert.models.run.packing import ONES, Packed, unpadded

from .input_layer import EmbeddingLayer


class Model(OfModules):
    """The input layer, the blocks and the heads of one checkpoint: `Encoder` without the methods for texts."""

    _words = "encoder", "modules"
    config: Config
    dim: int
    """The width of a token's vector; that of a sentence may differ: `get_embedding_dimension()`."""
    dtype: np.dtype[Any]
    """The number format of the blocks: float32, or float64 by `load_encoder(dtype=...)`."""
    block_family: Blocks
    threads: int | None  # as passed to `load_encoder`

    def __init__(
        self,
        embeddings: EmbeddingLayer,
        blocks: Blocks,
        stack: Stack,
        config: Config,
        heads: Callable[[], Heads],
        threads: int | None = None,
        *,
        reopen: Callable[[], Model],
        settings: Mapping[str, Any] = {},
    ) -> None:
        """reopen: loads the model again, for pickle. settings: the keys of config.json that layer and blocks read."""
        vars(self).update(config=config, dim=stack.width(embeddings.dim), dtype=embeddings.dtype)
        vars(self).update(block_family=blocks, threads=threads)
        self._layer = embeddings
        self._stack: Stack | None = stack
        self._heads: Callable[[], Heads] | None = heads
        self._reopen, self._settings = reopen, settings

    @property
    def stack(self) -> Stack:
        """The bound blocks and their shared state."""
        stack = self._stack  # read once: another thread may close the encoder between two reads
        if stack is None:
            raise ValueError("this encoder is closed; load it again")
        return stack

    @property
    def embeddings(self) -> EmbeddingLayer:
        """The input layer."""
        self.stack  # noqa: B018  raises if the encoder is closed
        return self._layer

    @property
    def max_length(self) -> int | None:
        """The most tokens per call: the rows of the position table. `encode` truncates at `max_seq_length`."""
        return self.embeddings.max_length

    @property
    def modules(self) -> dict[str, Any]:
        """The modules by their path in the reference's base model, in the order of computation."""
        stack = self.stack
        modules = dict(self._layer.modules)
        for block in stack.blocks:
            modules |= {module_path(key): module for key, module in block.modules.items() if hasattr(module, "weight")}
        last = {stack.last_map: modules.pop(stack.last_map)} if stack.last_map else {}
        return modules | stack.others | last

    # -- numbers -------------------------------------------------------------------------------------------------

    @hinted
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
        """Return the last hidden state: (batch, seq) ids -> (batch, seq, dim), float32 (or the encoder's dtype).

        One sequence (seq,) becomes (seq, dim). attention_mask (batch, seq): 1 for a token, 0 for padding; without a
        mask all are tokens. No token sees padding, and the rows of padding are zeros. Padding costs nothing: it is left
        out. Whether the last bits depend on the other sequences: see `Encoder`.

        change: name of an intermediate -> its new value for the rest of the run, an array or a function of the values.
        See `models.run.changes`; `minibert.knock_out` makes the classic changes.

        Raises as a call of the input layer does, and ValueError for a sequence of nothing but padding.
        """
        other_ids = dict(token_type_ids=token_type_ids, position_ids=position_ids, task_type_ids=task_type_ids)
        stack = self.stack
        inputs, keep, single = self._checked(input_ids, other_ids, attention_mask, inputs_embeds)
        if change is not None:
            y = run_changed(self._layer, stack, inputs, keep, change)
            return y[0] if single else y
        make = np.zeros if np.count_nonzero(keep) < keep.size else np.empty
        y = make((inputs.batch, inputs.seq, self.dim), self.dtype)

        def put(tile: Packed, x: Array) -> None:
            y[tile.where()] = x

        run_model(self._layer, stack, unpadded(inputs, keep), put, self.threads)
        return y[0] if single else y

    def compute(
        self,
        packed: Packed,
        put: Callable[[Packed, Array], object],
        take: Callable[[Packed], Array | None] | None = None,
        threads: int | None = None,
    ) -> None:
        """Run packed tokens through the whole model, tile by tile: see `blocks.run_model`."""
        threads = self.threads if threads is None else threads
        run_model(self._layer, self.stack, packed, put, threads, take=take)

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the heads in the file: any of `masked_word`, `next_word`, `classes`, `token_classes`,
        `next_sentence`, `replaced_token` and `answer`."""
        return self._found_heads().names

    def head(self, name: str | None = None) -> BoundHead:
        """Return a head; without a name the one that `architectures` in config.json names, or the only one.

        Raises CheckpointError if the file does not have the head, ValueError for an unknown name, or if there are
        several heads and none is named.
        """
        return self._found_heads()[name]

    @property
    def pooler(self) -> Callable[[Array], Array] | None:
        """The function of first rows that returns `pooler_output`: `tanh(x @ weight^T + bias)`, (n, dim) -> (n, dim).

        None if the file has no pooler.
        """
        return self._found_heads().pooler

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
        """Return the output of a head, the reference's `logits`: float32 (or the encoder's dtype).

        Arguments as in a call, with `change`; `head` as in `head()`. `masked_word`, `next_word` and
        `token_classes` return (batch, seq, labels); `answer` (batch, seq, 2): whether an answer starts at a token, and
        whether it ends there; `replaced_token` (batch, seq); `classes` and `next_sentence` (batch, labels). One
        sequence of ids has no batch axis. Rows of padding are zeros. The call needs little memory besides the result.

        Raises as a call, and as `head`; ValueError if a head reads one token of each sequence, and that is padding.
        """
        bound_head = self.head(head)
        inputs, keep, single = self._checked(input_ids, ids, attention_mask, inputs_embeds)
        if change is None:
            run = partial(self.compute, unpadded(inputs, keep))
            y = batch_logits(bound_head, ids_of(inputs), keep, self.dtype, run)
        else:
            passed = {"last": run_changed(self._layer, self.stack, inputs, keep, change)}
            trace_head(bound_head, passed, ids_of(inputs), keep)
            y = passed["logits"]
        return y[0] if single else y

    def trace(
        self,
        input_ids: ArrayLike | None = None,
        *,
        head: str | None = None,
        change: Mapping[str, Change] | None = None,
        **arguments: Any,
    ) -> dict[str, Array]:
        """Return every named intermediate in the order of computation: the input layer's trace, then that of each
        block.

        Arguments as in a call. Most keys are module paths of the reference's base model. Further keys:
        `hidden_states.i` and `attentions.i`, numbered as in the reference; `scores`, before mask and softmax;
        `context`, the input of the output projection; `sum`, a module's output plus the residual. If blocks share a
        module, the key contains the block's number: `albert_layers.0[3].ffn`. Norms of each head's queries and keys are
        (batch, seq, heads, head_dim). Rows of padding are zeros, in `attentions.i` too. With the name of a `head`, its
        modules follow, for the tokens that it reads, and `logits` at the end. With `change`, the values are the changed
        ones, and rows of padding are zeros in the input layer too.
        """
        mask, embeds = (arguments.pop(name, None) for name in ("attention_mask", "inputs_embeds"))
        stack, bound_head = self.stack, None if head is None else self.head(head)
        inputs, keep, _ = self._checked(input_ids, arguments, mask, embeds)
        if change is None:
            trace = self._layer.traced(inputs)
            trace["hidden_states.0"] = x = trace[next(reversed(trace))]
            packed = unpadded(inputs, keep)
            recorder = Recorder(packed, (inputs.batch, inputs.seq), trace)
            run_blocks(stack, x[recorder.where], packed, hook=recorder)
        else:
            trace = self._layer.traced_positions(inputs)
            run_changed(self._layer, stack, inputs, keep, change, trace)
        if bound_head is not None:
            trace_head(bound_head, trace, ids_of(inputs), keep)
        return trace

    def _checked(
        self, input_ids: ArrayLike | None, other_ids: dict[str, Any], attention_mask: Any, inputs_embeds: Any
    ) -> tuple[Inputs, Array, bool]:
        """Check and complete the arguments, as the input layer does; return them, and which tokens are not padding."""
        known = ("token_type_ids", "position_ids", "task_type_ids")
        for name in sorted(other_ids.keys() - {*known}):
            hint = advice(name, (*known, "attention_mask", "inputs_embeds", "head", "change")) or "; leave it out"
            raise TypeError(f"an encoder takes no {name}{hint}")
        if self.stack.rotary is not None and other_ids.get("position_ids") is not None:
            turns = "this encoder rotates queries and keys by each token's position"
            raise TypeError(f"{turns}; it takes no position_ids, leave it out")
        inputs, single = self._layer.prepare(input_ids, other_ids, attention_mask, inputs_embeds=inputs_embeds)
        shape = (inputs.batch, inputs.seq)
        if attention_mask is None:
            return inputs, np.ones(shape, bool), single
        mask = np.asarray(attention_mask).reshape(shape)
        keep = mask != 0
        if not ((mask == 0) | (mask == 1)).all():
            raise ValueError(ONES)
        empty = np.flatnonzero(~keep.any(axis=1)).tolist()
        if inputs.seq and empty and self.stack.blocks:
            why = "a sequence needs a token: attention over padding alone has no meaning; leave that sequence out"
            raise ValueError(f"attention_mask[{empty[0]}] is 0 everywhere, but {why}")
        return inputs, keep, single

    # -- text ----------------------------------------------------------------------------------------------------

    def tokenize(self, texts: Texts, text_pair: Texts | None = None, **options: Any) -> dict[str, Any]:
        """Turn one text or many into a batch of ids: see `EmbeddingLayer.tokenize`."""
        return self.embeddings.tokenize(texts, text_pair, **options)

    def tokens(self, ids: ArrayLike) -> Any:
        """Return the token strings of ids: see `EmbeddingLayer.tokens`."""
        return self.embeddings.tokens(ids)

    # -- life ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._stack is None:
            return f"<closed {type(self).__name__} of {self._layer.family.model_type}>"
        return module_list(self.modules)

    def close(self) -> None:
        """Drop all weights. Returned arrays stay valid; later calls raise ValueError. Closing twice is fine."""
        self._stack = self._heads = None
        self._layer.close()
