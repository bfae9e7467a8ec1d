"""`EmbeddingLayer`: a family's steps bound to a checkpoint's tables; call it, trace it, print it, embed texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.modules import module_list
from minibert.families.parts.steps import Bound
from minibert.files.tokenizer import listed
from minibert.models.run import packing
from minibert.models.run.attributes import hinted
from minibert.models.run.layer import InputLayer, modules_of
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline
from minibert.threads.computing import checked_threads, usable_threads
from minibert.threads.pool import parallel_for

if TYPE_CHECKING:
    from minibert.files.checkpoint import Tensor
    from minibert.files.tokenizer import Encoded, Texts, Tokenizer


CHUNK = 2048  # texts tokenized at once; it bounds the memory beyond the result


class EmbeddingLayer(InputLayer):
    """The input layer of one checkpoint: ids -> rows -> sum -> LayerNorm -> array.

    `minibert.load` makes it. Submodules have the reference's names: the last part of the path (`layer.wte`,
    `layer.word_embeddings`, `layer.LayerNorm`) or the full path (`layer["embeddings.word_embeddings"]`).
    Safe to call from many threads at once. A context manager. After `close()` every use raises ValueError; a call that
    is running on another thread ends with its result or with the same error.

    `pickle` and `copy.deepcopy` do not copy the tables. They store a few kB: the model's name, from which the layer is
    opened again (in a worker process, for example), and the options of `load`, a family of your own included. The name
    is the folder's absolute path, or the Hub name with the commit that was opened.
    """

    side: str
    tensors: tuple[Tensor, ...]  # location of each tensor in its file
    stored: Callable[[], Mapping[str, Tensor | None]]  # the same for the tensors that the layer does not use

    def __init__(
        self,
        family: Family,
        config: Config,
        steps: Sequence[Bound],
        dtype: np.dtype[Any],
        side: str = "encoder",
        tokenizer: Callable[[], Tokenizer] | None = None,
        attention_position: Callable[[], Any] | None = None,
        closing: Callable[[], None] | None = None,
        tensors: Sequence[Tensor] = (),
        reopen: Callable[[], EmbeddingLayer] | None = None,
        stored: Callable[[], Mapping[str, Tensor | None]] = dict,
    ) -> None:
        super().__init__(family, config, steps, dtype)
        self._open_tokenizer, self._attention_position = tokenizer, attention_position
        self._opened: dict[str, Tokenizer] = {}
        self._closing, self._reopen = closing, reopen
        vars(self).update(side=side, tensors=tuple(tensors), stored=stored)

    # -- text ------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, opened on first use. Raises TokenizerError if there is none."""
        make, opened = self._open_tokenizer, self._opened
        self.steps  # noqa: B018  raises if the layer is closed
        if make is None:
            raise ValueError("this layer was made without a tokenizer; pass input_ids")
        # two threads may both open it, and one result is kept. No lock: after a fork it could stay closed for ever
        return opened.get("") or opened.setdefault("", make())

    @hinted
    def tokenize(
        self,
        texts: Texts,
        text_pair: Texts | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        padding: str = "right",
        types: str | None = None,
    ) -> dict[str, Any]:
        """Turn one text or many into a batch of ids, the arguments of a call: `layer(**batch)`.

        -> input_ids and attention_mask (batch, seq), int64; token_type_ids too if the family adds types by default.
        Shorter texts are padded on the `padding` side. With `truncation`, longer texts are truncated to `max_length`
        (default: the position table), pairs longest first; without it, a longer text is a ValueError.

        As in transformers, an empty second text in a list keeps its [SEP] and its type 1, so that a text's ids do not
        depend on its neighbours; with two plain strings, tokenize("a", ""), an empty second text is ignored.

        types="file" reads token_type_ids from tokenizer.json: ALBERT was trained with these, but its class in
        transformers returns zeros.
        """
        if types not in (None, "file"):
            raise ValueError(f"types must be None, as the tokenizer's class has them, or 'file', found {types!r}")
        tokenizer, longest = self.tokenizer, self._longest(max_length, truncation)
        encoded = tokenizer.encode(texts, text_pair, truncation, longest, file_types=types == "file")
        batch = tokenizer.pad(encoded, padding)
        if not self.adds_types:
            del batch["token_type_ids"]
        return batch

    def tokens(self, ids: ArrayLike) -> Any:
        """Return the token strings of ids: a list for (seq,), a list of lists for (batch, seq), a string for one id."""
        tokenizer = self.tokenizer
        return tokenizer.tokens(check_ids(ids, tokenizer.size, "ids"))

    def nearest(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """Return the k tokens whose word rows have the largest cosine with that of a word: [(token, cosine), ...].

        The word itself, special tokens and unused tokens are left out. The word is looked up first as in a text (an
        uncased model makes it lower case), then as the vocabulary writes it, "##ing". Every row is read; beside the
        table this needs one extra float per row.

        Raises ValueError for a word of several pieces (the message lists them), for an unknown word, for k below 1.
        """
        from minibert.models.sentences.search import nearest

        return nearest(self.steps[0].module.table, self.tokenizer, word, k)

    @hinted
    def embed(
        self,
        texts: Texts,
        pooling: str | None = "mean",
        *,
        normalize: bool = False,
        truncation: bool = False,
        threads: int | None = None,
        progress: bool = False,
    ) -> Any:
        """Turn texts into vectors without context. Right for nearest words, as features of a small classifier, and as
        the input of a model that runs elsewhere; wrong for the meaning of a sentence (see `load_encoder`).

        "mean" or "max" over a text's tokens -> (n, dim); None -> a list of (seq, dim).

        Special tokens count, padding never does. `normalize` divides each vector by its length. The vector of a text
        without tokens is zeros. The bits of a text's vector do not depend on the texts around it.

        Raises ValueError for another pooling ("cls" among them: see the message) and for a text that is too long.
        """
        items = listed(texts)
        pipeline = self.pipeline(pooling, normalize, truncation, threads)
        return pipeline.all(items, "embed" if progress else "")

    def pipeline(
        self,
        pooling: str | None = "mean",
        normalize: bool = False,
        truncation: bool = False,
        threads: int | None = None,
    ) -> LayerPipeline:
        """The steps of `embed`, for callers with their own loop: its arguments, and its errors."""
        if pooling == "cls":
            why = "the first row is the same for every text, because it comes from [CLS], type 0 and position 0 alone"
            raise ValueError(f"pooling 'cls' is meaningless here: before attention {why}; use 'mean' or 'max'")
        if pooling not in (None, "mean", "max"):
            raise ValueError(f"pooling must be 'mean', 'max' or None, found {pooling!r}")
        poolings, dim = ((), None) if pooling is None else ((pooling,), self.dim)
        return LayerPipeline(
            self, dim=dim, poolings=poolings, normalize=normalize, longest=self.max_length,
            truncation=truncation, threads=checked_threads(threads), chunk=CHUNK,
        )  # fmt: skip

    def _longest(self, max_length: int | None, truncation: bool) -> int | None:
        if max_length is None:
            max_length = self.max_length
            if truncation and max_length is None:
                raise ValueError(f"{self.family.model_type} has no longest length; pass max_length with truncation")
        elif isinstance(max_length, bool) or not isinstance(max_length, int | np.integer) or max_length < 0:
            raise ValueError(f"max_length must be an integer >= 0, found {max_length!r}")
        elif self.max_length is not None:
            max_length = min(max_length, self.max_length)
        return max_length

    # -- looking inside --------------------------------------------------------------------------------------

    @property
    def attention_position(self) -> Any:
        """The position scheme that acts inside attention (rotary, ALiBi, relative), or None."""
        make = self._attention_position
        self.steps  # noqa: B018  raises if the layer is closed
        return make() if make is not None else None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            for path, module in self.modules.items():
                if path.rpartition(".")[2] == name:
                    return module
            if name == self.family.shared:
                return next(iter(self.modules.values()))
            known = ", ".join(path.rpartition(".")[2] for path in self.modules)
            hint = self._hint(name) or f"; its submodules are {known}"
            raise AttributeError(f"this layer has no {name!r}{hint}")
        raise AttributeError(name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(path.rpartition(".")[2] for path in modules_of(self._steps or ()))]

    def __repr__(self) -> str:
        steps = self._steps
        if steps is None:
            return f"<closed EmbeddingLayer of {self.family.model_type}>"
        return module_list(modules_of(steps))

    def __reduce__(self) -> tuple[Any, ...]:
        self.steps  # noqa: B018  raises if the layer is closed
        if self._reopen is None:
            why = "it was not made by minibert.load, so it has no name to open it again"
            raise TypeError(f"this layer cannot be pickled or copied: {why}")
        return self._reopen, ()

    def close(self) -> None:
        """Drop the tables. Returned arrays stay valid; later calls raise ValueError. Closing twice is fine."""
        self._steps = None
        closing, self._closing = self._closing, None
        self._open_tokenizer = self._attention_position = None  # these hold tables too
        self._opened = {}
        if closing is not None:
            closing()


class LayerPipeline(TextPipeline):
    """The pipeline of `embed`: rows without blocks. A text without a token gives zeros, a long one may be an error."""

    layer: EmbeddingLayer
    truncation: bool = False

    def __init__(self, layer: EmbeddingLayer, **steps: Any) -> None:
        self.layer, self.dtype = layer, layer.dtype  # a layer may have no tokenizer: without texts it needs none
        vars(self).update(steps)

    def tokenize(self, texts: list[Any], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts. Raises ValueError for a text that is too long, without `truncation`."""
        return self.layer.tokenizer.encode(texts, None, self.truncation, self.longest, start)

    def run(self, encoded: Sequence[Encoded], put: Callable[[Packed, Array], None]) -> None:
        """Compute the rows of a chunk, tile by tile."""
        packed, width = self.layer.pack(encoded), self.layer.dim
        count = usable_threads(packed.inputs.seq * width, self.threads)
        # each tile allocates memory, and more than 2 MB would come from the system each time
        tiles = packed.tiles(packing.TILE_NUMBERS // 2 // width)
        parallel_for(lambda tile: put(tile, self.layer.rows(tile)), tiles, count)
