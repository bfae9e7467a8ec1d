"""Words: what a mask hides, what comes next, and a text written on, word by word."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, overload

import numpy as np

from minibert.equations.fast import linear
from minibert.equations.input_layer import Array
from minibert.equations.sampling import drawn, next_word_probabilities
from minibert.errors import CheckpointError, Text, TokenizerError, error_of
from minibert.families.parts.heads import BoundHead
from minibert.files.reading import read_object
from minibert.files.tokenizer import Encoded, Texts, listed
from minibert.files.tokenizer_files import Find
from minibert.models.model import Model
from minibert.models.run.attention import KeyValueCache
from minibert.models.run.attributes import hinted
from minibert.models.run.blocks import run_blocks
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import check_positive
from minibert.models.sentences.sentences import Sentences
from minibert.threads.computing import compute

from .heads import check_numbers, logit_pieces, refuse_empty, refuse_long


class Prediction(TypedDict):
    """A token as text, its probability and its id, as the reference's fill-mask pipeline names them."""

    token_str: str
    score: float
    token: int


Predictions = list[list[Prediction]]  # for each of some tokens the likeliest ones
Take = Callable[[Packed], Array]  # which of a tile's tokens
FILE = "generation_config.json"
# what else of transformers' `generate` changes which words come -> the value besides null that changes nothing
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


class Words(Sentences):
    """A model with a head for words: what a mask hides, what comes next, and a text continued word by word.

    `ends` gives the ids that end a continued text, by generation_config.json.
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
        """Guess the words that masks hide: `encoder.fill("The capital of France is [MASK].")`.

        One text gives a list with one entry for each mask, in order; a list of texts gives a list of such lists. An
        entry is a list of the k likeliest tokens, best first, each a dict with the names of transformers' `fill-mask`:
        `token_str`, the token as text; `score`, its probability; `token`, its id. Of several masks each is guessed by
        itself. The mask is the tokenizer's: `[MASK]` of BERT, `<mask>` of RoBERTa.

        Raises CheckpointError where the file has no head `masked_word`, ValueError for a text without a mask, or one
        that is too long, TypeError for anything but text.
        """
        check_positive("k", k)
        head, tokenizer = self.head("masked_word"), self.embeddings.tokenizer
        mask_id = None if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
        if mask_id is None:
            raise TokenizerError("this tokenizer names no mask token; set mask_token in tokenizer_config.json")

        found = self._predicted(text, head, k, lambda tile: np.flatnonzero(tile.ids == mask_id))
        if [] in found:
            advice = f" has no {tokenizer.mask}; write it in place of the word to predict"
            raise error_of(ValueError, Text(found.index([])), advice)
        return found[0] if isinstance(text, str) else found

    @overload
    def next_words(self, text: str, k: int = ...) -> list[Prediction]: ...
    @overload
    def next_words(self, text: Iterable[str], k: int = ...) -> list[list[Prediction]]: ...

    @hinted
    def next_words(self, text: Texts, k: int = 5) -> Any:
        """Guess the next word: `encoder.next_words("The meaning of life is")`.

        One text gives the list of the k likeliest tokens, as an entry of `fill`; a list of texts gives a list of such
        lists. A token that begins a new word begins with a space.

        Raises as `fill`, of the head `next_word`; ValueError for a text without a token.
        """
        check_positive("k", k)
        head = self.head("next_word")
        found = self._predicted(text, head, k, lambda tile: np.cumsum(tile.lengths) - 1)
        return found[0][0] if isinstance(text, str) else [of_last for (of_last,) in found]

    def _predicted(self, texts: Texts, head: BoundHead, k: int, take: Take) -> list[Predictions]:
        """Give for each text and each of its tokens that are taken the k likeliest tokens."""
        decode = self.embeddings.tokenizer.decode

        def results(tile: Packed, x: Array) -> list[Predictions]:
            found: dict[int, Predictions] = {text: [] for text in tile.texts.tolist()}
            rows = (each.tolist() for each in (tile.where()[0][take(tile)], *likeliest(head, x, k)))
            for text, ids, scores in zip(*rows, strict=True):
                pairs = zip(ids, scores, strict=True)
                found[text].append([{"token_str": decode([i]), "score": score, "token": i} for i, score in pairs])
            return [*found.values()]

        pipeline = self.each_text(partial(_encoded, self, head), results, take=take)
        found: list[Predictions] = pipeline.all(listed(texts)[0])
        return found

    @hinted
    def complete(self, text: str, tokens: int = 20, temperature: float = 0.0, seed: int = 0) -> str:
        """Continue a text by up to `tokens` tokens, and give it with what comes after it.

        Temperature 0 takes the likeliest token each time, as `generate(do_sample=False)` of transformers. A higher one
        chooses at random, `p = softmax(logits / temperature)`, the same for the same `seed`. `eos_token_id`, where the
        text ends, is that of generation_config.json; without that file, of config.json. Its own temperature, top_k and
        top_p are without effect. Keys and values of earlier tokens are kept: a new token costs one token's work.

        Raises as `next_words`; CheckpointError where that file has a setting that changes the words and is not computed
        here, such as num_beams and repetition_penalty; ValueError where text and tokens go beyond the position table.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, found {type(text).__name__}; complete takes one text at a time")
        check_positive("tokens", tokens)
        _check_chance(temperature, seed)
        tokenizer = self.embeddings.tokenizer
        head, ends = self.head("next_word"), self._ends()
        (encoded,) = _encoded(self, head, [text])
        ids = new = encoded.input_ids
        longest, begun = self.max_length, len(ids)
        if longest is not None and begun + tokens - 1 > longest:  # the last token is written and not read
            raise ValueError(
                f"tokens must be at most {longest - begun + 1}, found {tokens}: the text has {begun} tokens, and the "
                f"position table ends at {longest}"
            )
        random, cache = np.random.default_rng(seed), KeyValueCache()
        logits = np.empty(head.labels, self.dtype)

        def read(new: Sequence[int]) -> None:
            last = go_on(self, new, cache)[-1:]
            for words, piece in logit_pieces(head, last, linear):  # one row: fastest without padding rows
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
    """Take the next tokens of one text through the model: their last hidden states (tokens, dim).

    The tokens before them are in the cache; afterwards these are too.
    """
    layer, text, past = model.embeddings, np.zeros(1, np.int64), cache.length
    inputs, _ = layer.prepare(np.array([ids], np.int64), {}, past_length=past)
    packed = Packed(inputs, text, np.array([len(ids)]), np.arange(past, past + len(ids)))
    return run_blocks(model.stack, layer.rows(packed), packed, cache=cache)


def choose(logits: Array, temperature: float, random: np.random.Generator) -> int:
    """Choose the next token: the likeliest at temperature 0, else at random, `p = softmax(logits / temperature)`.

    logits (vocab,). The lower the temperature, the more often the likeliest is chosen; at 1 it is as the model says.

    >>> choose(np.array([1.0, 3.0, 2.0]), 0.0, np.random.default_rng(0))
    1
    """
    check_numbers(logits)
    if temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # minus infinity is a probability of 0
        return drawn(next_word_probabilities(logits.astype(np.float64), temperature), random.random())


def likeliest(head: BoundHead, x: Array, k: int) -> tuple[Array, Array]:
    """Give the k largest probabilities of each row, best first: x (rows, dim) -> ids (rows, k) and probabilities.

    The logits come in pieces, of which only the best and the sum of all exponentials are kept:
    `p = exp(logit - log(sum exp(logits)))`.
    """
    ids, best = np.empty((len(x), 0), np.int64), np.empty((len(x), 0))
    total = np.full((len(x), 1), -np.inf)  # log of the sum so far
    for words, piece in logit_pieces(head, x):
        highest = piece.max(axis=1, keepdims=True)
        check_numbers(highest)
        total = np.logaddexp(total, highest + np.log(np.exp(piece - highest).sum(axis=1, keepdims=True)))
        own = np.sort(np.argpartition(-piece, min(k, piece.shape[1]) - 1, axis=1)[:, :k], axis=1)
        ids, best = np.hstack([ids, words.start + own]), np.hstack([best, np.take_along_axis(piece, own, 1)])
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        ids, best = np.take_along_axis(ids, order, 1), np.take_along_axis(best, order, 1)
    return ids, np.exp(best - total)


def _encoded(model: Model, head: BoundHead, texts: list[str], start: int = 0) -> list[Encoded]:
    """Give the ids of each text. Raises ValueError for one that is too long: truncated, it is another question."""
    encoded = model.embeddings.tokenizer.encode(texts, start=start)
    refuse_long(encoded, model.max_length, start)
    refuse_empty(head, encoded, lambda i: Text(start + i))
    return encoded


def _check_chance(temperature: Any, seed: Any) -> None:
    own = temperature.item() if isinstance(temperature, np.number) else temperature  # float32 has no place for the most
    if isinstance(own, bool) or not isinstance(own, int | float) or not 0 <= own <= sys.float_info.max:
        raise ValueError(f"temperature must be a number >= 0, where 0 takes the likeliest; found {temperature!r}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed must be an integer >= 0, found {seed!r}")


def read_generation(find: Find, config: Mapping[str, Any], where: str) -> frozenset[int]:
    """Give the ids that end a text: generation_config.json's, without that file config.json's, no default of a class.

    Raises CheckpointError that names the entry.
    """
    path = find(FILE)
    settings = config if path is None else read_object(path)

    def refused(what: str) -> CheckpointError:
        return CheckpointError(f"{where}: {'config.json' if path is None else FILE}: {what}")

    for key, neutral in REFUSED.items():
        if settings.get(key) not in (None, neutral):
            raise refused(
                f"{key!r} is {settings[key]!r:.40}, which changes the generated words and is not computed here; "
                f"remove it to generate without it"
            )
    ends = settings.get("eos_token_id")
    listed = ends if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    if not all(type(end) is int for end in listed):
        raise refused(f"'eos_token_id' must be an integer, a list of them or null, found {ends!r:.80}")
    return frozenset(listed)
