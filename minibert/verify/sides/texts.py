"""Texts that tell: of each kind of mistake at least one of them gives another vector.

`TEXTS` is what a port or a server is asked for. The order is part of it: a file of vectors has one row for each.
"""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from minibert.files.lines import raw_lines

from .numpy_files import opened


class Telling(NamedTuple):
    """A text, and the reason why it is here."""

    text: str
    why: str


WORDS = (
    "the river runs past the old town and under the stone bridge while people walk home from work in the "
    "evening light some carry bread and some carry books and a child looks at the water as if it had a secret "
    "to tell"
)


def _long(words: int, end: str = "") -> str:
    """Give common words, one token each in most vocabularies; `end` takes the place of the last ones."""
    tail = end.split()
    return " ".join([*islice(cycle(WORDS.split()), words - len(tail)), *tail])


# fmt: off
TEXTS: tuple[Telling, ...] = tuple(Telling(*each) for each in (
    ("we lived above the clouds", "plain words: pooling, normalization, positions and the blocks show alone"),
    ("we lived above the clouds", "the text before once more: another vector shows that the model is random"),
    ("a cat sleeps on the warm stone", "plain words, of another length"),
    ("the bank of the river was muddy after the rain", "plain words, of another length"),
    ("dogs bark at night", "plain words, few: special tokens are a large part of a mean"),
    ("how do i reset my password", "plain words, a question: a prompt for queries"),
    ("he opened the small box and found a letter that his mother had written many years before", "plain, longer"),
    ("a", "one letter"),
    ("i", "one letter that is a word"),
    ("", "empty: special tokens alone"),
    (" ", "a space alone: as empty, unless spaces are tokens"),
    ("word word word word word word word word", "one word again and again: only positions tell its tokens apart"),
    ("the dog bites the man", "the same words as the next text: only the order differs"),
    ("the man bites the dog", "the same words as the text before"),
    ("London", "a capital letter"),
    ("THE HOUSE IS ON FIRE", "upper case"),
    ("the house is on fire", "the text before in lower case: the same vector where case is removed"),
    ("iPhone and McDonald and eBay", "upper case inside words"),
    ("STRASSE Straße", "a letter whose upper case is two letters"),
    ("İstanbul ISPARTA ısparta", "the Turkish i: lower case that changes the length, or does not"),  # noqa: RUF001
    ("ΟΔΥΣΣΕΥΣ", "Greek: the last sigma has a lower case of its own"),
    ("café", "an accent"),
    ("cafe", "the text before without its accent: the same vector where accents are removed"),
    ("cafe\u0301", "the same accent as a combining mark: only a normal form makes them equal"),
    ("naïve résumé à la carte", "several accents"),
    ("Ångström Ünal Žižek Łódź", "accents on capitals, and a stroke that is no accent"),
    ("tiếng Việt có nhiều dấu", "two marks on one letter"),
    ("a\u0301\u0323\u0308b", "several combining marks in a row"),
    ("हिन्दी में एक वाक्य", "Devanagari: marks that are no accents are lost where accents are removed"),
    ("日本語の文章です", "Japanese"),
    ("我爱北京天安门", "Chinese without spaces: each character is a word of its own, or not"),
    ("我 爱 北 京 天 安 门", "the text before with spaces"),
    ("ガギグ ｶﾞｷﾞｸﾞ", "full and half width: equal under NFKC"),
    ("한국어 문장입니다", "Korean: NFD takes its syllables apart"),
    ("مرحبا بالعالم", "Arabic"),
    ("اَلْعَرَبِيَّةُ", "Arabic with vowel marks"),
    ("שלום עולם", "Hebrew"),
    ("привет, мир", "Cyrillic"),
    ("йогурт и ёлка", "Cyrillic letters with marks"),
    ("I like it 🙂", "an emoji"),
    ("👩‍👩‍👧 🇫🇷 👍🏽", "emoji of several characters"),
    ("ﬁne oﬃce ① ½ ™", "ligatures and signs that NFKC replaces"),
    ("“quoted” – and … dashes — of all kinds", "punctuation beyond ASCII"),  # noqa: RUF001
    ("it's don't I'm we'll", "apostrophes"),
    ("state-of-the-art, e.g. (this) [that] {those}!", "punctuation inside and around words"),
    ("3.14159 1,000,000 2024-01-31 0x1F 12345678901234567890", "numbers"),
    ("user@example.com https://example.com/a_b?c=d&e=f#g", "an address"),
    ("x = y**2; if (a != b) { return `c`; }", "code"),
    ("line one\nline two\ttabbed\r\nline three", "ends of lines and a tab"),
    ("  spaces   inside and around  ", "spaces in a row"),
    ("zero\u200bwidth \u00adsoft non\u00a0breaking", "characters that nobody sees"),
    ("nul\x00 bell\x07 escape\x1b del\x7f end", "control characters"),
    ("\ufeffmark at the beginning", "a byte order mark"),
    ("[CLS] the [SEP] and [MASK] <s> </s> <|endoftext|>", "special tokens written as text"),
    ("query: how do i reset my password", "a prompt as text"),
    ("passage: how do i reset my password", "another prompt as text"),
    ("Represent this sentence for searching relevant passages: how do i reset my password", "a long prompt as text"),
    ("antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis", "words of many pieces"),
    ("q" * 120, "a word longer than WordPiece takes: unknown"),
    (_long(126), "about 128 tokens: truncated there, or not"),
    (_long(253), "255 tokens in BERT's vocabulary"),
    (_long(254), "256 tokens"),
    (_long(255), "257 tokens: one too many for a model that ends at 256"),
    (_long(300), "longer than 256"),
    (_long(300, "volcano lava ash smoke fire"), "differs from the text before only after token 256"),
    (_long(400), "longer than 384"),
    (_long(510), "512 tokens"),
    (_long(511), "513 tokens: one too many for most models"),
))
# fmt: on


def read_texts(path: Path) -> list[str]:
    """Read texts: of a file .jsonl the "text" of each line, of another each line. Raises ValueError for a bad line."""
    if path.suffix.lower() in (".parquet", ".csv", ".tsv", ".arrow"):
        raise ValueError(f"{path}: texts are read of lines or of JSON lines; write its texts to a file, one a line")
    texts = list[str]()
    for number, line in enumerate(raw_lines(str(opened(path))), 1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
            texts.append(json.loads(text)["text"] if path.suffix.lower() == ".jsonl" else text)
            if not isinstance(texts[-1], str):
                raise ValueError(f'"text" is {texts[-1]!r:.40}')
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f'{path}, line {number}: expected a text, in JSON an object with "text" ({error})'
            ) from None
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts
