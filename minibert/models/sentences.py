"""Sentence vectors: `encode` and its kin, which are methods of `Encoder`.

A chunk of texts becomes ids; the tokens of many texts are packed into tiles and go through the blocks, nothing padded;
each text's tokens are pooled; then comes what else the folder's recipe has. One stream carries all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, SIMILARITIES, normalized
from minibert.files.tokenizer import Encoded, Texts, Tokenizer, listed

from .blocks import Group
from .recipe import Recipe
from .texts import check_positive, chunked, gathered, shown, stream

if TYPE_CHECKING:
    from .encoder import Encoder

CHUNK = 512  # how many texts are sorted by length together; memory beyond the result is bounded by it
OUTPUTS = ("sentence_embedding", "token_embeddings")
TASKS = (None, "query", "document")


def encode(
    self: Encoder,
    texts: Texts,
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
) -> Any:
    """Turn texts into vectors as sentence-transformers does: one str -> (dim,), many -> (n, dim), none -> (0, dim).

    The folder says how: modules.json lists pooling, dense layers and norms; other files have the prompts and the
    longest length. A longer text is truncated there without a message: see `max_seq_length`. Without modules.json a
    vector is the mean over the tokens.

    Weights stored as float16 or bfloat16 are widened: the vectors are those of the model in float32.
    sentence-transformers computes such a folder in its narrow format, unless told otherwise; on MiniLM its numbers are
    then up to 6e-4 (float16) and 4e-3 (bfloat16) of the vector's length from these.

    The other texts of a call change each number of a vector by at most 1e-6 of the vector's length (measured on
    MiniLM: 2.6e-7): a matrix product with other rows rounds differently.

    prompt_name   one of the folder's prompts, put before each text; without it the folder's default, if it has one
    prompt        a text put before each text; prompt_name is then without effect
    batch_size    no effect on memory: about a thousand tokens are computed at once, however many texts that is
    output_value  "token_embeddings" gives for each text its tokens' vectors (tokens, dim) before pooling, in a list
    truncate_dim  so many first numbers of each vector; normalize_embeddings comes after it
    task          "query" or "document" takes their longest length where the folder has one

    precision, convert_to_numpy, convert_to_tensor and device may be passed by habit, as float32 arrays on the CPU.

    Raises TypeError for anything but text, ValueError for an unknown argument or prompt, TokenizerError where there is
    no tokenizer.
    """
    _refuse_habits(precision, convert_to_numpy, convert_to_tensor, device)
    check_positive("batch_size", batch_size)
    plan = plan_of(self, prompt_name, prompt, output_value, normalize_embeddings, truncate_dim, task)
    items, _ = listed(texts)
    chunks = shown(chunked(items, CHUNK), len(items), "encode") if show_progress_bar else chunked(items, CHUNK)
    tokens = output_value == "token_embeddings"
    vectors = stream(chunks, plan.tokenize, plan.vectors, at_once=len(items) > CHUNK)
    found = gathered(vectors, len(items), None if tokens else plan.dim, self.dtype)
    return found[0] if isinstance(texts, str) else found


def encode_stream(
    self: Encoder,
    texts: Iterable[str],
    prompt_name: str | None = None,
    prompt: str | None = None,
    batch_size: int = CHUNK,
    *,
    output_value: str = "sentence_embedding",
    normalize_embeddings: bool = False,
    truncate_dim: int | None = None,
    task: str | None = None,
) -> Iterator[Array]:
    """Turn texts into vectors while they come: a generator in, a generator out, a vector (dim,) for each text.

    `batch_size` texts (at most 512) are read, sorted by length and computed before the first of their vectors is given,
    and the next are read after the last of them: with 1 each text is answered at once. Memory is bounded by that.
    What else is passed is as in `encode`, and so is what is raised, when a text is reached.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be many, one after another, found one str; encode takes it")
    check_positive("batch_size", batch_size)
    plan = plan_of(self, prompt_name, prompt, output_value, normalize_embeddings, truncate_dim, task)
    chunks = stream(chunked(texts, min(batch_size, CHUNK)), plan.tokenize, plan.vectors)
    return (vector.copy() for vectors in chunks for vector in vectors)  # a view would keep the whole chunk alive


def encode_chunks(
    encoder: Encoder,
    chunks: Iterable[list[str]],
    prompt_name: str | None = None,
    prompt: str | None = None,
    task: str | None = None,
) -> Iterator[Array]:
    """Give each chunk's vectors (texts, dim) when it has come; of a chunk of more than 512 texts, as many at once."""
    plan = plan_of(encoder, prompt_name, prompt, task=task)
    parts = (part for chunk in chunks for part in chunked(chunk, CHUNK))
    return stream(parts, plan.tokenize, plan.vectors)


def encode_query(
    self: Encoder, texts: Texts, prompt_name: str | None = None, prompt: str | None = None, **options: Any
) -> Any:
    """`encode` for what somebody looks for: with the folder's prompt "query", and never its default prompt."""
    if prompt_name is None and prompt is None:
        prompt_name = "query"
    return self.encode(texts, prompt_name, prompt, **{"task": "query", **options})


def encode_document(
    self: Encoder, texts: Texts, prompt_name: str | None = None, prompt: str | None = None, **options: Any
) -> Any:
    """`encode` for what is looked through: with the folder's prompt "document", and never its default prompt."""
    if prompt_name is None and prompt is None:
        prompt_name = "document"
    return self.encode(texts, prompt_name, prompt, **{"task": "document", **options})


def similarity(self: Encoder, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Array:
    """Compare vectors as the folder says, by cosine where it says nothing: (n, dim), (m, dim) -> (n, m).

    One vector (dim,) counts as (1, dim). The larger, the more alike: "euclidean" and "manhattan" are negative.
    """
    first, second = (_vectors_of(each, name) for each, name in ((embeddings1, "1"), (embeddings2, "2")))
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"vectors must have one width, found {first.shape} and {second.shape}")
    return SIMILARITIES[self.recipe.similarity](first, second)


def _vectors_of(value: ArrayLike, name: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise TypeError(
            f"embeddings{name} must be vectors (n, dim) of numbers, found {array.dtype} of shape {array.shape}; "
            "encode makes vectors of texts"
        )
    return np.atleast_2d(array if array.dtype == np.float64 else array.astype(np.float32, copy=False))


# -- one call ----------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """All that one call needs to know, whatever texts come; these are the `Stages` of sentence vectors."""

    encoder: Encoder
    recipe: Recipe
    tokenizer: Tokenizer
    prompt: str
    skip: int  # tokens of the prompt that are not pooled
    longest: int | None
    tokens: bool  # give the tokens' vectors
    cut: int | None
    normalize: bool

    @property
    def dim(self) -> int:
        return self.recipe.width(self.cut)

    def tokenize(self, texts: list[str], start: int) -> list[Encoded]:
        """Give each text's ids, with the prompt before it, cut to the longest length."""
        if self.prompt:  # anything but a str goes to the tokenizer as it is, whose error says where it is
            texts = [self.prompt + text if isinstance(text, str) else text for text in texts]
        return self.tokenizer.encode(texts, None, truncation=True, max_length=self.longest, start=start)

    def vectors(self, encoded: list[Encoded]) -> Any:
        """Give a chunk's vectors (texts, dim), or a list of (tokens, dim)."""
        encoder, poolings = self.encoder, self.recipe.poolings
        width = encoder.dim * len(poolings)
        found: Any = [None] * len(encoded) if self.tokens else np.empty((len(encoded), width), encoder.dtype)
        for texts, rows in _rows(encoder, self.tokenizer, encoded):
            if self.tokens:
                for i, own in zip(texts, rows, strict=True):
                    found[i] = own.copy()
            else:
                found[texts] = np.concatenate([POOLINGS[name](rows, self.skip) for name in poolings], axis=1)
        if self.tokens:
            return found
        for step in self.recipe.after:
            found = step(found)
        found = found[:, : self.dim]
        return normalized(found) if self.normalize else found


def _rows(encoder: Encoder, tokenizer: Tokenizer, encoded: list[Encoded]) -> Iterator[tuple[Array, Array]]:
    """Take a chunk through the blocks: texts of one length at a time, (texts,) and their rows (texts, seq, dim)."""
    empty = np.array([i for i, row in enumerate(encoded) if not row.input_ids], np.int64)
    if len(empty):  # without any token: where a tokenizer adds no special ones
        yield empty, np.empty((len(empty), 0, encoder.dim), encoder.dtype)
    texts = np.setdiff1d(np.arange(len(encoded)), empty)
    if not len(texts):
        return
    batch = tokenizer.pad([encoded[i] for i in texts])
    if not encoder.embeddings.adds_types:
        del batch["token_type_ids"]
    group: Group
    for tile, x in encoder.packed(**batch):
        for group in tile.groups:
            yield texts[group.texts], x[group.tokens].reshape(len(group.texts), group.length, encoder.dim)


def plan_of(
    encoder: Encoder,
    prompt_name: str | None = None,
    prompt: str | None = None,
    output_value: str = OUTPUTS[0],
    normalize: bool = False,
    truncate_dim: int | None = None,
    task: str | None = None,
) -> Plan:
    """Check the arguments of a call and give its plan. Raises as `encode` does, but for what texts are wrong."""
    if output_value not in OUTPUTS:
        raise ValueError(f"output_value must be {' or '.join(map(repr, OUTPUTS))}, found {output_value!r}")
    if task not in TASKS:
        raise ValueError(f"task must be None, 'query' or 'document', found {task!r}")
    recipe = encoder.recipe
    if truncate_dim is not None:
        check_positive("truncate_dim", truncate_dim)
    before = _prompt(recipe, prompt_name, prompt)
    tokenizer = encoder.sentence_tokenizer
    skip = 0
    if before and not recipe.include_prompt:
        (alone,) = tokenizer.encode([before], None, truncation=True, max_length=recipe.longest)
        # in the real call the special token at the end comes after the text
        skip = len(alone.input_ids) - (bool(alone.input_ids) and tokenizer.is_special(alone.input_ids[-1]))
    longest = recipe.lengths.get(task or "", recipe.longest)
    return Plan(
        encoder,
        recipe,
        tokenizer,
        before,
        skip,
        longest,
        output_value == "token_embeddings",
        truncate_dim,
        bool(normalize),
    )


def _prompt(recipe: Recipe, prompt_name: str | None, prompt: str | None) -> str:
    if prompt is not None:
        if not isinstance(prompt, str):
            raise TypeError(f"prompt must be a str, found {type(prompt).__name__}")
        return prompt
    name = recipe.default_prompt if prompt_name is None else prompt_name
    if name is None:
        return ""
    if name not in recipe.prompts:
        raise ValueError(
            f"prompt_name must be one of this model's {', '.join(map(repr, recipe.prompts))}, found {name!r}; "
            "prompt= takes any text"
        )
    return recipe.prompts[name]


def _refuse_habits(precision: Any, convert_to_numpy: Any, convert_to_tensor: Any, device: Any) -> None:
    """Refuse arguments of sentence-transformers that ask for something else than arrays of float32 on the CPU."""
    advice = "this encoder gives NumPy arrays on the CPU; leave it out"
    if precision not in (None, "float32"):
        raise ValueError(f"precision must be 'float32', found {precision!r}; convert the vectors afterwards")
    if convert_to_numpy is not True:
        raise ValueError(f"convert_to_numpy must be True, found {convert_to_numpy!r}: {advice}")
    if convert_to_tensor is not False:
        raise ValueError(f"convert_to_tensor must be False, found {convert_to_tensor!r}: {advice}")
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device must be None or 'cpu', found {device!r}: {advice}")
