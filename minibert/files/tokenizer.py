"""Text -> token ids, for one text or a million.

The tokenizers library splits the texts. Its tokenizer is configured once and never changed afterwards, so threads may
share it. Padding and truncation are done here, on the ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, Text, TokenizerError, error_of

Texts = str | Iterable[str]
Parts = tuple[str, ...]  # a text, or a pair of texts
SHORT, FEW = 2000, 16  # letters, texts: up to here the library's threads are no faster than one thread
COLUMNS = 8  # column names of a table that an error shows

# the spare tokens of BERT and fairseq: no training text contains them
FOR_LATER_USE = re.compile(r"\[unused\d+\]|madeupword\d+|<extra_id_\d+>")


@contextmanager
def without_panic(file: str) -> Iterator[None]:
    """Raise TokenizerError for a panic of the tokenizers library, which is not an Exception; Ctrl-C passes through."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        wrong = f"the tokenizers library broke off ({str(error) or 'without a reason'})"
        raise TokenizerError(f"{file}: {wrong}; a rule in this file is damaged; fetch it again") from None


class Encoded(NamedTuple):
    """The ids of one text (or pair), and each token's segment, 0 or 1; None if every token has segment 0.

    truncated: the number of tokens removed. unseen: the number of last tokens that attend to all tokens, while no
    token attends to them.
    """

    input_ids: list[int]
    token_type_ids: list[int] | None
    truncated: int = 0
    unseen: int = 0


class Tokenizer:
    """An opened tokenizer file. `pad_id` fills the shorter rows of a batch.

    file: its name in messages. truncates_left: a text that is too long loses its beginning. pads_left: the reference
    pads a text before its first token. named: the special tokens by their names, as in "mask" -> "[MASK]". typed:
    whether the model gets token types, the segment of each token.
    """

    def __init__(
        self,
        tokenizer: Any,
        pad_id: int | None = None,
        file: str = "",
        truncates_left: bool = False,
        named: Mapping[str, str] = {},
        typed: bool = True,
        pads_left: bool = False,
    ) -> None:
        self.truncation: dict[str, Any] | None = tokenizer.truncation  # the file's setting, used by static models
        tokenizer.no_padding()  # a file may set both: then a text's ids would depend on the other texts of the batch,
        tokenizer.no_truncation()  # or would be truncated silently at the length used in training
        self._tokenizer, self._file, self.truncates_left, self._typed = tokenizer, file, truncates_left, typed
        self.pads_left = pads_left
        self.pad_id, self.named, self.mask = pad_id if pad_id is not None else 0, named, named.get("mask")
        self._encode_batch = tokenizer.encode_batch_fast  # computes no character offsets, which nothing here needs

    @property
    def kind(self) -> str:
        """The algorithm's name in the library: WordPiece, BPE, Unigram or WordLevel."""
        return type(self._tokenizer.model).__name__

    @property
    def leaves_types_out(self) -> bool:
        """Whether the file gives a second text another type, which the tokenizer's class does not pass to the model."""
        return not self._typed and any(self._tokenizer.encode("a", "a").type_ids)

    @cached_property
    def size(self) -> int:
        """One more than the largest id; some vocabularies have gaps below it."""
        return int(max(self._tokenizer.get_vocab().values(), default=-1)) + 1

    def pieces(self, text: str) -> list[int]:
        """Return the ids of a text without special tokens around it."""
        with without_panic(self._file):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary writes it, "##ing" or "Ġdog"; None for an unknown token."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def names(self) -> dict[int, str]:
        """Return each id's token, without special and unused tokens, which are never text."""
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        if (unknown := getattr(self._tokenizer.model, "unk_token", None)) is not None:
            special.add(self.id_of(unknown))
        every = self._tokenizer.get_vocab().items()
        return {i: token for token, i in every if i not in special and not FOR_LATER_USE.fullmatch(token)}

    def encode(
        self,
        texts: Texts,
        text_pair: Texts | None = None,
        truncation: bool = False,
        max_length: int | None = None,
        start: int = 0,
        file_types: bool = False,
    ) -> list[Encoded]:
        """Return each text's ids, with the special tokens of its model.

        An empty second text in a list counts: its [SEP] and its type 1 stay, so that a text's ids do not depend on the
        other texts of the list. A single empty second text is ignored. transformers does both.

        start: the number of the first text, for messages. file_types: return the file's token types even if the
        tokenizer's class has none.

        Raises TypeError for anything but str; ValueError for a lone surrogate, for second texts that are more or fewer
        than the texts, and for a text longer than `max_length` without `truncation`; TokenizerError if the vocabulary
        has no token for a text, not even an unknown one.
        """
        if isinstance(texts, str) and isinstance(text_pair, str) and not text_pair:
            text_pair = None
        firsts = texts if isinstance(texts, list) and text_pair is None else listed(texts)
        pairs = None if text_pair is None else listed(text_pair, "text_pair")
        if pairs is not None and len(pairs) != len(firsts):
            raise ValueError(f"text_pair must have one text for each of the {len(firsts)} texts, found {len(pairs)}")
        encodings, typed = self._encoded(firsts, pairs, start, self._encode_batch, file_types)
        return [self._fit(encoding, i, typed, truncation, max_length) for i, encoding in enumerate(encodings, start)]

    def _encoded(
        self, firsts: Sequence[str], pairs: Sequence[str] | None, start: int, split: Callable[[list[Any]], Any],
        file_types: bool = False,
    ) -> tuple[list[Any], bool]:  # fmt: skip
        """Return the library's encoding of each text, and whether the model gets token types."""
        _refuse_other_than_str(firsts, "texts", start)  # the library would read a pair of str as two texts
        texts: list[Parts] = list(zip(firsts))
        if pairs is not None:
            _refuse_other_than_str(pairs, "text_pair", start)
            texts = list(zip(firsts, pairs, strict=True))
        inputs = [text if len(text) > 1 else text[0] for text in texts]
        try:
            with without_panic(self._file):
                if len(texts) <= FEW and sum(len(part) for text in texts for part in text) <= SHORT:
                    # one by one: the library's threads, once awake, occupy the cores during the products that follow
                    encodings = [split([text])[0] for text in inputs]
                else:
                    encodings = list(split(inputs))
        except (TypeError, UnicodeError):
            for number, text in enumerate(texts, start):
                refuse_surrogates(text, number)
            raise
        except (TokenizerError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  the library's Rust core raises bare Exception
            raise TokenizerError(f"the tokenizer refuses a text ({error}); its vocabulary is incomplete") from None
        # a template treats all texts alike: if it gives the longest text segment 0, it gives every text segment 0
        longest = max(encodings, key=len, default=None)
        typed = (self._typed or file_types) and (pairs is not None or (longest is not None and any(longest.type_ids)))
        return encodings, typed

    def _fit(self, encoding: Any, i: int, typed: bool, truncation: bool, max_length: int | None) -> Encoded:
        """Read one encoding; truncate it to `max_length`, or raise ValueError."""
        ids, types = encoding.ids, encoding.type_ids if typed else None
        if max_length is None or len(ids) <= max_length:
            return Encoded(ids, types)
        if not truncation:
            too_long = f" has {len(ids)} tokens, but the longest sequence is {max_length} "
            too_long += "(max_length, else the position table); shorten it, or pass "
            raise error_of(ValueError, Text(i), too_long, Option("truncation", True))
        keep = self._kept(encoding, max_length)
        kept_types = None if types is None else np.array(types)[keep].tolist()
        return Encoded(np.array(ids)[keep].tolist(), kept_types, len(ids) - int(np.count_nonzero(keep)))

    def _kept(self, encoding: Any, max_length: int) -> Array:
        """Return which tokens of an encoding stay when it is truncated to `max_length`: (tokens,) of bool."""
        segment = np.array([-1 if number is None else number for number in encoding.sequence_ids])
        first, second = (int(np.count_nonzero(segment == number)) for number in (0, 1))
        specials = len(segment) - first - second
        if specials > max_length:
            raise ValueError(f"max_length {max_length} has no room for the {specials} special tokens of this model")
        room = longest_first(first, second, max_length - specials)
        keep: Array = segment == -1
        for number in (0, 1):
            here = segment == number
            count = np.cumsum(here)
            keep |= here & ((count > count[-1] - room[number]) if self.truncates_left else (count <= room[number]))
        return keep

    def encode_with_spans(
        self, texts: Sequence[str], max_length: int | None = None, start: int = 0, pairs: Sequence[str] | None = None
    ) -> list[tuple[Encoded, list[tuple[int, int] | None]]]:
        """Return each text's ids, truncated to `max_length`, and each token's span in the text: first letter, end.

        The span of a special token that the model adds is None. With second texts, spans refer to the second text,
        None for a token of the first. Raises what `encode` raises.
        """
        encodings, typed = self._encoded(texts, pairs, start, self._tokenizer.encode_batch)
        results = []
        for i, encoding in enumerate(encodings, start):
            size = len(encoding.ids)
            keep = self._kept(encoding, max_length) if max_length is not None and size > max_length else [True] * size
            inside = [number == (pairs is not None) for number in encoding.sequence_ids]
            tokens = zip(encoding.offsets, inside, keep, strict=True)
            spans = [(first, end) if in_text else None for (first, end), in_text, stays in tokens if stays]
            results.append((self._fit(encoding, i, typed, True, max_length), spans))
        return results

    def pad(self, encoded: Sequence[Encoded], padding: str = "right") -> dict[str, Array]:
        """Return one padded batch: input_ids, attention_mask, token_type_ids, int64 (batch, seq).

        Padding has mask 0, type 0 and the model's padding id, or id 0 if it has none (GPT-2): mask 0 makes it harmless.
        """
        if padding not in ("right", "left"):
            raise ValueError(f"padding must be 'right' or 'left', found {padding!r}")
        shape = (len(encoded), max((len(row.input_ids) for row in encoded), default=0))
        batch = {
            "input_ids": np.full(shape, self.pad_id, np.int64),
            "attention_mask": np.zeros(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        for i, row in enumerate(encoded):
            length = len(row.input_ids)
            columns = slice(0, length) if padding == "right" else slice(shape[1] - length, shape[1])
            batch["input_ids"][i, columns] = row.input_ids
            batch["attention_mask"][i, columns] = 1
            if row.token_type_ids is not None:
                batch["token_type_ids"][i, columns] = row.token_type_ids
        return batch

    def without_special_tokens(self) -> Tokenizer:
        """Disable special tokens and token types of this tokenizer, which no thread uses yet; return it."""
        self._tokenizer.post_processor, self._typed = None, False
        return self

    def lowercased(self) -> Tokenizer:
        """Return a copy that lowercases a text before any other rule; special tokens in the text are found first."""

        def change(rules: dict[str, Any]) -> None:
            normalizer = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
            steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
            if not any(step["type"] == "Lowercase" for step in steps):
                rules["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}

        return self.changed(change)

    def with_whole(self, prefixes: Iterable[str]) -> Tokenizer:
        """Return a copy that reads each of these prefixes as one token, regardless of its rules.

        If a prefix is not in the vocabulary, its first word is used; if that word is not either, it stays text.
        """
        parts = [next((part for part in (prefix, *prefix.split()[:1]) if self.id_of(part) is not None), "")
                 for prefix in prefixes]  # fmt: skip
        whole = {part: self.id_of(part) for part in parts if part.strip() and self.pieces(part) != [self.id_of(part)]}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

        def change(rules: dict[str, Any]) -> None:
            other_tokens = [token for token in rules["added_tokens"] if token["content"] not in whole]
            rules["added_tokens"] = other_tokens + [{"id": i, "content": part, **flags} for part, i in whole.items()]

        return self.changed(change) if whole else self

    def rules(self) -> str:
        """Return all rules and the vocabulary, as in a tokenizer.json."""
        return str(self._tokenizer.to_str())

    @cached_property
    def digest(self) -> str:
        """The sha256 of everything that decides a text's ids: rules, vocabulary, and settings outside tokenizer.json.

        Rules that are null, false or empty do not count: another version of the library writes more or fewer of them.
        """
        from hashlib import sha256  # here: OpenSSL takes time to load, and no vector needs it

        rules = json.loads(self.rules())
        vocabulary, merges = (rules["model"].pop(name, ()) for name in ("vocab", "merges"))
        vocabulary = sorted(vocabulary.items(), key=itemgetter(1)) if isinstance(vocabulary, dict) else vocabulary
        del rules["version"], rules["decoder"]
        settings = self.truncates_left, self._typed, self.pads_left, self._tokenizer.encode_special_tokens
        text = json.dumps(_without_empty(rules), sort_keys=True) + json.dumps([vocabulary, merges, settings])
        return sha256(text.encode()).hexdigest()

    def changed(self, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
        """Return a copy whose rules, but not its vocabulary, `change` has altered: the rules of a tokenizer.json."""
        from tokenizers import Tokenizer as Reader

        rules = json.loads(self.rules())
        model = dict(rules["model"])
        change(rules)
        reader = Reader.from_str(json.dumps(rules))
        if rules["model"] == model:
            reader.model = self._tokenizer.model  # the library would read its scores less exactly from JSON
        reader.encode_special_tokens = self._tokenizer.encode_special_tokens  # not part of tokenizer.json
        return Tokenizer(reader, self.pad_id, self._file, self.truncates_left, self.named, self._typed, self.pads_left)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of these ids: "##ing" alone stays "##ing", bytes become letters again."""
        with without_panic(self._file):
            return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def is_special(self, token_id: int) -> bool:
        """Whether this is a special token, such as [SEP]."""
        token = self._tokenizer.get_added_tokens_decoder().get(token_id)
        return token is not None and bool(token.special)

    def tokens(self, ids: Array) -> Any:
        """Return the token of each id as text, in nested lists of the ids' shape."""
        if ids.ndim:
            return [self.tokens(row) for row in ids]
        token = self._tokenizer.id_to_token(int(ids))
        if token is None:
            raise IndexError(f"id {ids} is below {self.size}, but this tokenizer has no token for it")
        return token


def _without_empty(rules: Any) -> Any:
    """Return rules without entries that are null, false or empty."""
    if isinstance(rules, dict):
        return {name: _without_empty(value) for name, value in rules.items() if value or type(value) in (int, float)}
    return [_without_empty(value) for value in rules] if isinstance(rules, list) else rules


def longest_first(first: int, second: int, limit: int) -> tuple[int, int]:
    """Divide `limit` tokens between two texts: shorten the longer text first, and both if needed.

    >>> longest_first(10, 3, limit=8), longest_first(10, 9, limit=7), longest_first(2, 3, limit=9)
    ((5, 3), (4, 3), (2, 3))
    """
    if first + second <= limit:
        return first, second
    short, long = min(first, second), max(first, second)
    if 2 * short > limit:  # both must be truncated; the odd token stays with the longer text
        short = limit // 2
    long = limit - short
    return (long, short) if first > second else (short, long)


def listed(texts: Texts, name: str = "texts") -> list[str]:
    """Return a new list of the texts. Raises TypeError."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, list):
        return texts.copy()
    if hasattr(texts, "to_pylist") and not hasattr(texts, "columns"):  # Arrow's columns iterate over scalars
        texts = texts.to_pylist()
    if (columns := getattr(texts, "columns", None)) is not None:  # pandas and Polars iterate over the names
        names = [repr(column) for column in columns if isinstance(column, str)] if isinstance(columns, Iterable) else []
        wrong = f"{name} must be a str or a list of str, found {type(texts).__name__}, a table; pass one of its columns"
        known = f"; it has {', '.join(names[:COLUMNS])}" if len(names) > 1 else ""
        raise TypeError(f"{wrong}, as in table[{names[0] if names else '...'}]{known}")
    scalar = getattr(texts, "ndim", 1) == 0  # np.array("one") claims to be iterable
    if scalar or isinstance(texts, bytes | bytearray | Mapping | Set) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} must be a str or a list of str, found {type(texts).__name__}{_hint(texts)}")
    return list(texts)


def _refuse_other_than_str(texts: Sequence[Any], name: str, start: int) -> None:
    for i, text in enumerate(texts, start):
        if not isinstance(text, str):
            if text is None or _is_missing(text):
                wrong = f" must be a str, found {type(text).__name__}, a missing value; leave the row out, or pass ''"
                raise error_of(TypeError, Text(i, name), wrong)
            raise error_of(TypeError, Text(i, name), f" must be a str, found {type(text).__name__}{_hint(text)}")


def refuse_surrogates(text: Parts, number: int) -> None:
    """Raise ValueError, with the text's number, for a text or pair that has a lone surrogate."""
    for part, name in zip(text, ("texts", "text_pair"), strict=False):
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            wrong = f" has a lone surrogate U+{ord(part[error.start]):04X} at index {error.start}; "
            advice = "read the text with the right encoding, or with errors='replace'"
            raise error_of(ValueError, Text(number, name), wrong, advice) from None


def _is_missing(value: Any) -> bool:
    """Whether this is a missing value: NaN, which equals nothing, or NA and NaT of pandas."""
    return (isinstance(value, float | np.floating) and value != value) or type(value).__name__ in ("NAType", "NaTType")


def _hint(text: Any) -> str:
    if isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text):
        return ", a pair of texts; predict scores pairs, and tokenize(first, second) makes ids of them"
    return "; decode it first, text.decode('utf-8')" if isinstance(text, bytes | bytearray) else ""
