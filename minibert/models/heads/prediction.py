"""Word prediction: the words behind masks, the next word, and a text continued word by word."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, overload

import numpy as np

from minibert.equations.fast import linear
from minibert.equations.heads import drawn, next_word_probabilities
from minibert.equations.input_layer import Array
from minibert.equations.similarity import top_indices
from minibert.errors import CheckpointError, Text, TokenizerError, error_of
from minibert.families.parts.heads import BoundHead
from minibert.files.reading import read_object
from minibert.files.tokenizer import Encoded, Texts, listed
from minibert.files.tokenizer_files import Find
from minibert.models.model import Model
from minibert.models.run.attributes import check_positive, hinted
from minibert.models.run.blocks import run_blocks
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline
from minibert.models.run.ready_blocks import KeyValueCache
from minibert.models.sentences.sentences import Sentences
from minibert.threads.computing import compute

from .heads import check_numbers, logit_pieces, refuse_empty, refuse_long


class Prediction(TypedDict):
    """A token as text, its probability and its id, as the reference's fill-mask pipeline names them."""

    token_str: str
    score: float
    token: int


Predictions = list[list[Prediction]]  # token -> its likeliest words
FILE = "generation_config.json"
# options of transformers' `generate` that change the words -> the value other than null that changes nothing
REFUSED: Mapping[str, Any] = {
    "num_beams": 1, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "suppress_tokens": [],
    "begin_suppress_tokens": [], "bad_words_ids": None, "sequence_bias": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "repetition_penalty": 1,
    "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1,
    "watermarking_config": None, "penalty_alpha": 0,
    "dola_layers": None, "constraints": None, "force_words_ids": None, "token_healing": False, "max_time": None,
    "stop_strings": None, "num_return_sequences": 1, "use_mtp": False, "assistant_early_exit": None,
    "is_assistant": False,
}  # fmt: skip


class WordPipeline(TextPipeline):
    """The pipeline of word predictions: for each mask of a text, or for its last token, the k likeliest tokens."""

    head: BoundHead
    k: int = 1
    mask_id: int | None = None  # None: the last token

    def tokenize(self, texts: list[str], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts. Raises ValueError for a text that is too long or empty."""
        encoded = self.tokenizer.encode(texts, start=start)
        refuse_long(encoded, self.max_length, start)
        refuse_empty(self.head, encoded, lambda i: Text(start + i))
        return encoded

    def take(self, tile: Packed) -> Array:
        """Return the masks of a tile, or each text's last token."""
        return np.cumsum(tile.lengths) - 1 if self.mask_id is None else np.flatnonzero(tile.ids == self.mask_id)

    def pool(self, tile: Packed, x: Array) -> list[Predictions]:
        """Return the likeliest tokens of each text."""
        predictions: dict[int, Predictions] = {text: [] for text in tile.texts.tolist()}
        columns = (column.tolist() for column in (tile.where()[0][self.take(tile)], *likeliest(self.head, x, self.k)))
        for text, ids, scores in zip(*columns, strict=True):
            pairs = zip(ids, scores, strict=True)
            decode = self.tokenizer.decode
            predictions[text].append([{"token_str": decode([i]), "score": score, "token": i} for i, score in pairs])
        return [*predictions.values()]


class WordPrediction(Sentences):
    """A model that predicts words: behind masks, the next word, and a text continued word by word.

    ends: returns the ids that end a continued text, from generation_config.json.
    """

    def __init__(self, *model: Any, ends: Callable[[], frozenset[int]] = frozenset, **options: Any) -> None:
        super().__init__(*model, **options)
        self._ends = ends

    @overload
    def fill(self, text: str, k: int = ...) -> list[list[Prediction]]: ...
    @overload
    def fill(self, text: Iterable[str], k: int = ...) -> list[list[list[Prediction]]]: ...

    @hinted
    def fill(self, text: Texts, k: int = 5) -> Any:
        """Predict the words behind masks: `encoder.fill("The capital of France is [MASK].")`.

        One text -> a list with one entry for each mask, in order; a list of texts -> a list of lists. An entry is a
        list of the k likeliest tokens, best first, each a dict with the names of transformers' `fill-mask`:
        `token_str`, the token as text; `score`, its probability; `token`, its id. Each of several masks is predicted
        by itself. The mask is the tokenizer's: `[MASK]` in BERT, `<mask>` in RoBERTa.

        Raises CheckpointError if the file has no head `masked_word`, ValueError for a text without a mask, or one that
        is too long, TypeError for anything but text.
        """
        check_positive("k", k)
        head, tokenizer = self.head("masked_word"), self.embeddings.tokenizer
        mask_id = None if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
        if mask_id is None:
            raise TokenizerError("this tokenizer names no mask token; set mask_token in tokenizer_config.json")

        pipeline = self.pipeline_of(WordPipeline, head=head, k=k, mask_id=mask_id, tokenizer=tokenizer)
        predictions = pipeline.all(listed(text))
        if [] in predictions:
            advice = f" has no {tokenizer.mask}; write it in place of the word to predict"
            raise error_of(ValueError, Text(predictions.index([])), advice)
        return predictions[0] if isinstance(text, str) else predictions

    @overload
    def next_words(self, text: str, k: int = ...) -> list[Prediction]: ...
    @overload
    def next_words(self, text: Iterable[str], k: int = ...) -> list[list[Prediction]]: ...

    @hinted
    def next_words(self, text: Texts, k: int = 5) -> Any:
        """Predict the next word: `encoder.next_words("The meaning of life is")`.

        One text -> the list of the k likeliest tokens, as an entry of `fill`; a list of texts -> a list of lists. A
        token that begins a new word begins with a space.

        Raises as `fill`, for the head `next_word`; ValueError for a text without a token.
        """
        check_positive("k", k)
        head = self.head("next_word")
        tokenizer = self.embeddings.tokenizer
        predictions = self.pipeline_of(WordPipeline, head=head, k=k, tokenizer=tokenizer).all(listed(text))
        return predictions[0][0] if isinstance(text, str) else [of_last for (of_last,) in predictions]

    @hinted
    def complete(self, text: str, tokens: int = 20, temperature: float = 0.0, seed: int = 0) -> str:
        """Continue a text by up to `tokens` tokens; return the text and its continuation.

        Temperature 0 takes the likeliest token each time, as `generate(do_sample=False)` of transformers. A higher
        temperature draws from `softmax(logits / temperature)`; the same `seed` draws the same tokens. The text ends at
        `eos_token_id` of generation_config.json, or without that file of config.json. Temperature, top_k and top_p in
        that file have no effect. Keys and values of earlier tokens are cached: a new token is computed alone.

        Raises as `next_words`; CheckpointError if that file has a setting that changes the words and is not computed
        here, for example num_beams or repetition_penalty; ValueError if text and tokens exceed the position table.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, found {type(text).__name__}; complete takes one text at a time")
        check_positive("tokens", tokens)
        _check_chance(temperature, seed)
        tokenizer = self.embeddings.tokenizer
        head, ends = self.head("next_word"), self._ends()
        (encoded,) = self.pipeline_of(WordPipeline, head=head, tokenizer=tokenizer).tokenize([text], 0)
        ids = new = encoded.input_ids
        longest, begun = self.max_length, len(ids)
        if longest is not None and begun + tokens - 1 > longest:  # the last token is not read
            why = f"the text has {begun} tokens, and the position table ends at {longest}"
            raise ValueError(f"tokens must be at most {longest - begun + 1}, found {tokens}: {why}")
        random, cache = np.random.default_rng(seed), KeyValueCache()
        logits = np.empty(head.labels, self.dtype)

        def read(new: Sequence[int]) -> None:
            last = go_on(self, new, cache)[-1:]
            for words, piece in logit_pieces(head, last, linear):  # one row is fastest without padding rows
                logits[words] = piece[0]

        for _ in range(tokens):
            compute(read, [new], self.threads)
            token = choose(logits, temperature, random)
            if token in ends:
                break
            new = [token]
            ids = ids + new
        # decoded together: a letter may be split between two tokens, and some tokenizers drop a text's first space
        before = tokenizer.decode(encoded.input_ids, skip_special_tokens=True)
        return text + tokenizer.decode(ids, skip_special_tokens=True)[len(before) :]


def go_on(model: Model, ids: Sequence[int], cache: KeyValueCache) -> Array:
    """Compute the last hidden states (tokens, dim) of the next tokens of one text, and add the tokens to the cache.

    The cache has the tokens before.
    """
    layer, text, past = model.embeddings, np.zeros(1, np.int64), cache.length
    inputs, _ = layer.prepare(np.array([ids], np.int64), {}, past_length=past)
    packed = Packed(inputs, text, np.array([len(ids)]), np.arange(past, past + len(ids)))
    return run_blocks(model.stack, layer.rows(packed), packed, cache=cache)


def choose(logits: Array, temperature: float, random: np.random.Generator) -> int:
    """Choose the next token: the likeliest at temperature 0, else at random, `p = softmax(logits / temperature)`.

    logits (vocab,). The lower the temperature, the more often the likeliest is chosen; 1 leaves the model's
    probabilities.

    >>> choose(np.array([1.0, 3.0, 2.0]), 0.0, np.random.default_rng(0))
    1
    """
    check_numbers(logits)
    if temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # minus infinity is a probability of 0
        return drawn(next_word_probabilities(logits.astype(np.float64), temperature), random.random())


def likeliest(head: BoundHead, x: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest probabilities of each row, best first: x (rows, dim) -> ids (rows, k) and probabilities.

    The logits are computed in pieces; only the best and the sum of all exponentials are kept:
    `p = exp(logit - log(sum exp(logits)))`.
    """
    ids, best = np.empty((len(x), 0), np.int64), np.empty((len(x), 0))
    total = np.full((len(x), 1), -np.inf)  # log of the sum so far
    for words, piece in logit_pieces(head, x):
        highest = piece.max(axis=1, keepdims=True)
        check_numbers(highest)
        total = np.logaddexp(total, highest + np.log(np.exp(piece - highest).sum(axis=1, keepdims=True)))
        top = top_indices(piece, k)
        ids, best = np.hstack([ids, words.start + top]), np.hstack([best, np.take_along_axis(piece, top, 1)])
        order = top_indices(best, k)
        ids, best = np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)
    return ids, np.exp(best - total)


def _check_chance(temperature: Any, seed: Any) -> None:
    number = temperature.item() if isinstance(temperature, np.number) else temperature  # max would overflow float32
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= sys.float_info.max:
        raise ValueError(f"temperature must be a number >= 0, where 0 takes the likeliest; found {temperature!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer >= 0, found {seed!r}")


def read_generation(find: Find, config: Mapping[str, Any], where: str) -> frozenset[int]:
    """Read the ids that end a text: from generation_config.json, or without that file from config.json; no default.

    Raises CheckpointError with the name of the entry.
    """
    path = find(FILE)
    settings = config if path is None else read_object(path)

    def refused(problem: str) -> CheckpointError:
        return CheckpointError(f"{where}: {'config.json' if path is None else FILE}: {problem}")

    for key, neutral in REFUSED.items():
        if settings.get(key) not in (None, neutral):
            setting = f"{key!r} is {settings[key]!r:.40}"
            raise refused(f"{setting}, which changes the words and is not computed here; remove it")
    ends = settings.get("eos_token_id")
    ids = ends if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    if not all(type(end) is int for end in ids):
        raise refused(f"'eos_token_id' must be an integer, a list of them or null, found {ends!r:.80}")
    return frozenset(ids)
