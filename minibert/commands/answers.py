"""`minibert nearest`, `fill`, `next` and `classify`: each text, and below it names with numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .common import Parser, add_k, add_model, coloured, escaped, load_layer, load_model, print_lines, tell_truncated

WIDEST = 40  # columns of the bar for a probability of 1
Answers = Iterator[list[str]]  # the lines below each text


def print_answers(texts: Iterable[str], answers: Iterable[Iterable[str]]) -> None:
    """Print each text, bold on a terminal, with its lines below it, and an empty line between two texts."""
    from minibert.show.text import styles

    bold, _ = styles(coloured())
    for i, (text, lines) in enumerate(zip(texts, answers, strict=True)):
        print_lines([*([""] if i else []), bold(escaped(text)), *lines])


def beside(names: Sequence[str], numbers: Iterable[str], quote: str = "") -> list[str]:
    """Format each name with its number, one per line, the numbers in one column. `quote` is put around a name."""
    from minibert.show.text import columns_of, fitting, padded

    names = [f"{quote}{fitting(name)}{quote}" for name in names]
    wide = max(map(columns_of, names), default=0)
    return [f"  {padded(name, wide)}  {number}".rstrip() for name, number in zip(names, numbers, strict=True)]


def bars(named: Sequence[tuple[str, float]], quote: str = "") -> list[str]:
    """Format each name with its probability and a bar: of blocks if the terminal's encoding has them, else of #."""
    stroke = "█"
    try:
        stroke.encode(sys.stdout.encoding)
    except (AttributeError, LookupError, TypeError, UnicodeEncodeError):
        stroke = "#"
    return beside([name for name, _ in named], (f"{p:.4f}  {stroke * round(WIDEST * p)}" for _, p in named), quote)


def _word_bars(words: Sequence[dict[str, Any]], quote: str = "") -> list[str]:
    return bars([(word["token_str"], word["score"]) for word in words], quote)


def _nearest(arguments: Any) -> Answers:
    with load_layer(arguments) as layer:  # every row is read
        answers = [layer.nearest(word, arguments.k) for word in arguments.texts]
    for near in answers:
        yield beside([token for token, _ in near], (f"{cosine:7.4f}" for _, cosine in near))


def _fill(arguments: Any) -> Answers:
    with load_model(arguments) as encoder:
        answers = encoder.fill(arguments.texts, arguments.k)
    for masks in answers:
        titles = [[f"mask {number}"] if len(masks) > 1 else [] for number, _ in enumerate(masks, 1)]
        yield [line for title, words in zip(titles, masks, strict=True) for line in (*title, *_word_bars(words))]


def _next(arguments: Any) -> Answers:
    with load_model(arguments) as encoder:
        answers = encoder.next_words(arguments.texts, arguments.k)
    yield from (_word_bars(words, quote='"') for words in answers)


def _classify(arguments: Any) -> Answers:
    with load_model(arguments) as encoder:
        encoder.max_seq_length = encoder.max_length  # longer texts are truncated and counted
        answers = encoder.classify(arguments.texts, arguments.k)
        encoded = encoder.sentence_tokenizer.encode(arguments.texts, None, True, encoder.max_seq_length)
    yield from (bars([(label.label, label.probability) for label in labels]) for labels in answers)
    tell_truncated((i, text.truncated) for i, text in enumerate(encoded) if text.truncated)


class AnswerCommand(NamedTuple):
    """A command that prints each text with its answers below it."""

    ABOUT: str
    EXAMPLE: str
    answers: Callable[[Any], Answers]
    text: dict[str, Any]  # metavar and help of the argument
    counted: tuple[str, int]  # the things that -k counts, and its default
    model: dict[str, Any]  # options of `add_model`

    def declare(self, parser: Parser) -> None:
        """Add the arguments."""
        parser.add_argument("texts", nargs="+", **self.text)
        add_k(parser, *self.counted)
        add_model(parser, **self.model)

    def run(self, arguments: Any) -> None:
        """Print each text and its answers."""
        print_answers(arguments.texts, self.answers(arguments))


WHOLE: dict[str, Any] = {"side": False, "threads": True}
COMMANDS = {
    "nearest": AnswerCommand(
        """Nearness is the cosine. A row has no context: a word with two meanings has one
row for both. Special and unused tokens are left out.""",
        "minibert nearest king paris seven -k 5",
        _nearest, {"metavar": "WORD"}, ("words", 10), {},
    ),
    "fill": AnswerCommand(
        """Write the model's mask, [MASK] for BERT and <mask> for RoBERTa, in place of a
word. Several masks are predicted independently. The model needs its head for
masked words; models for sentence vectors do not have one.""",
        'minibert fill "The capital of France is [MASK]." -m bert-base-uncased',
        _fill, {"metavar": "TEXT", "help": "a text with at least one mask"}, ("words", 5), WHOLE,
    ),
    "next": AnswerCommand(
        """For causal models such as GPT-2. A token that begins with a space starts a new
word; otherwise it continues the previous word.""",
        'minibert next "The meaning of life is" -m gpt2',
        _next, {"metavar": "TEXT", "help": "the beginning of a text"}, ("words", 5), {**WHOLE, "usual": "gpt2"},
    ),
    "classify": AnswerCommand(
        """The labels are the model's, such as POSITIVE and NEGATIVE. The model needs its
head for classes. Labels that can be true together do not add up to 1.""",
        'minibert classify "The movie was good." "The movie was not good."',
        _classify, {"metavar": "TEXT"}, ("labels", 5),
        {**WHOLE, "usual": "distilbert/distilbert-base-uncased-finetuned-sst-2-english"},
    ),
}  # fmt: skip
