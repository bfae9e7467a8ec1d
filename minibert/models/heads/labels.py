"""Labels of texts, spans that have one, and spans that answer a question, as transformers' pipelines give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.errors import Text
from minibert.files.tokenizer import Encoded, Texts, listed
from minibert.models.run.attributes import hinted
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import check_positive
from minibert.models.sentences.sentences import Sentences

from .heads import checked_logits, refuse_empty, refuse_long, tokens_of

OUTSIDE = "O"  # the label of a token that belongs to no span
TRUNCATE = ", or set max_seq_length of the encoder: texts are then truncated there"  # ends an error
LONGEST = 15  # tokens of an answer
REGRESSION, SEVERAL = "regression", "multi_label_classification"  # of config.json's problem_type


class Label(NamedTuple):
    """A class by its name, and how likely it is."""

    label: str
    probability: float


class Entity(NamedTuple):
    """A span of a text, text[start:end], with its label and the mean probability of its tokens."""

    label: str
    text: str
    start: int
    end: int
    probability: float


class Answer(NamedTuple):
    """A span of a text, text[start:end], and the product of the probabilities that it starts and ends there."""

    text: str
    start: int
    end: int
    score: float


class Labels(Sentences):
    """A model that gives labels of texts and of their spans, and answers, as transformers' pipelines."""

    @overload
    def classify(self, texts: str, k: int | None = ...) -> list[Label]: ...
    @overload
    def classify(self, texts: Iterable[str], k: int | None = ...) -> list[list[Label]]: ...

    @hinted
    def classify(self, texts: Texts, k: int | None = None) -> Any:
        """Give the labels of texts with their probabilities, the likeliest first: the head `classes` on each text.

        One str -> a list of `Label(label, probability)`, many -> a list of such lists. `k`: at most this many labels.
        config.json names them (`id2label`). The probabilities are a softmax; of one label, or with problem_type
        multi_label_classification, a sigmoid of each. No text is truncated, unless `max_seq_length` was set.

        Raises TypeError for anything but text, CheckpointError for a file without that head, ValueError for
        problem_type regression and a text that is too long, TokenizerError where there is no tokenizer.
        """
        check_positive("k", k, or_none=True)
        items, _ = listed(texts)
        head, tokenizer = self.head("classes"), self.sentence_tokenizer
        longest = self.max_seq_length if self._length_set else None
        several = self.config.get("problem_type")
        if several == REGRESSION:
            raise ValueError(
                "config.json says problem_type regression: this model gives numbers and no classes; take them from "
                'logits(**tokenize(text), head="classes")'
            )

        def tokenize(chunk: list[str], start: int) -> list[Encoded]:
            encoded = tokenizer.encode(chunk, None, True, longest, start)
            refuse_long(encoded, self.max_length, start, TRUNCATE)
            refuse_empty(head, encoded, lambda i: Text(start + i, "texts"))
            return encoded

        activate = sigmoid if several == SEVERAL or head.labels == 1 else softmax
        take = partial(tokens_of, head)
        pipeline = self.each_text(tokenize, lambda tile, x: activate(checked_logits(head, tile, x)), take=take)
        found = [best_labels(row, head.id2label)[:k] for row in pipeline.all(items)]
        return found[0] if isinstance(texts, str) else found

    @overload
    def entities(self, texts: str) -> list[Entity]: ...
    @overload
    def entities(self, texts: Iterable[str]) -> list[list[Entity]]: ...

    def entities(self, texts: Texts) -> Any:
        """Give the spans of a text that have a label, in their order: the head `token_classes` on each token.

        One str -> a list of `Entity(label, text, start, end, probability)`, many -> a list of such lists. The text is
        text[start:end] of what was passed. Tokens are joined as transformers' token-classification pipeline does with
        aggregation_strategy="simple"; the probability is their mean. As there a text is truncated at model_max_length
        of tokenizer_config.json, or at `max_seq_length` if that was set.

        Raises TypeError for anything but text, CheckpointError for a file without that head, ValueError for a text that
        is too long, TokenizerError where there is no tokenizer.
        """
        head, items = self.head("token_classes"), listed(texts)[0]
        longest = self.max_seq_length if self._length_set else self.sentence_config.tokenizer_length
        spans: list[list[tuple[int, int] | None]] = []  # of each text's tokens

        def tokenize(chunk: list[str], start: int) -> list[Encoded]:
            both = self.sentence_tokenizer.encode_with_spans(chunk, longest, start)
            encoded = [ids for ids, _ in both]
            refuse_long(encoded, self.max_length, start, TRUNCATE)
            spans.extend(own for _, own in both)
            return encoded

        def probabilities(tile: Packed, x: Array) -> list[Array]:
            return np.split(softmax(checked_logits(head, tile, x)), tile.starts[1:])

        rows = self.each_text(tokenize, probabilities).all(items)
        found = [list(grouped(*each, head.id2label)) for each in zip(items, spans, rows, strict=True)]
        return found[0] if isinstance(texts, str) else found

    def answer(self, question: str, text: str) -> Answer:
        """Find the answer to a question in a text: `Answer(text, start, end, score)`, where text is text[start:end].

        The head `answer` gives two logits for each token of the pair. p(start) and p(end) are softmaxes over the tokens
        of the text and the classification token, where models trained with questions without an answer put those. The
        answer is the span of at most 15 tokens, all of the text, with the largest p(start) p(end), which is its score;
        of equal ones the first, then the shortest. Spaces at its ends are left out. So did transformers' pipeline for
        question answering, which in addition widened spans to whole words.

        Raises TypeError for anything but two texts, CheckpointError for a file without that head, ValueError for a pair
        that is too long and a text without a token, TokenizerError where there is no tokenizer.
        """
        for name, given in (("question", question), ("text", text)):
            if not isinstance(given, str):
                raise TypeError(f"{name} must be a str, found {type(given).__name__}")
        head, tokenizer = self.head("answer"), self.sentence_tokenizer
        ((encoded, spans),) = tokenizer.encode_with_spans([question], None, pairs=[text])
        refuse_long([encoded], self.max_length, 0, " or its question")
        inside = np.array([span is not None for span in spans])
        if not inside.any():
            raise ValueError(f"the text must have a token to answer with, found {text!r:.40}")
        pipeline = self.each_text(lambda *_: [encoded], lambda tile, x: [checked_logits(head, tile, x)])
        (logits,) = pipeline.all([text])
        special = tokenizer.named.get("cls")
        counted = inside | (np.array(encoded.input_ids) == (tokenizer.id_of(special) if special else -1))
        first, last, score = best_span(logits, inside, counted)
        (start, _), (_, end) = spans[first] or (0, 0), spans[last] or (0, 0)
        found = text[start:end]
        start += len(found) - len(found.lstrip())
        return Answer(found.strip(), start, start + len(found.strip()), score)


def best_labels(probabilities: Array, id2label: Mapping[int, str]) -> list[Label]:
    """Name the probabilities of one text, the largest first; of equal ones the first label comes first.

    >>> best_labels(np.array([0.25, 0.5, 0.25]), {0: "sky", 1: "sea", 2: "land"})
    [Label(label='sea', probability=0.5), Label(label='sky', probability=0.25), Label(label='land', probability=0.25)]
    """
    named = [Label(id2label[i], probability) for i, probability in enumerate(probabilities.tolist())]
    return sorted(named, key=lambda each: each.probability, reverse=True)


def grouped(
    text: str, spans: Sequence[tuple[int, int] | None], probabilities: Array, id2label: Mapping[int, str]
) -> Iterator[Entity]:
    """Join tokens of one label to spans, as transformers does under the name "simple".

    spans: where each token stands in the text, None for a special one; probabilities (tokens, labels). A token goes on
    with the span before it where its label is of the same kind and does not begin with "B-"; a special token between
    the two does not matter. A span of the label "O" is none.

    >>> likely = np.eye(3)[[0, 1, 2, 0]]
    >>> [*grouped("in New York", [(0, 2), (3, 6), (7, 11), None], likely, {0: "O", 1: "B-LOC", 2: "I-LOC"})]
    [Entity(label='LOC', text='New York', start=3, end=11, probability=1.0)]
    """
    best = probabilities.argmax(axis=1).tolist() if probabilities.size else []
    tokens = [(span, id2label[i], row[i]) for span, i, row in zip(spans, best, probabilities, strict=True) if span]
    kinds = [label[2:] if label.startswith(("B-", "I-")) else label for _, label, _ in tokens]
    starts = [
        i for i, (_, label, _) in enumerate(tokens) if not i or label.startswith("B-") or kinds[i] != kinds[i - 1]
    ]
    for first, after in pairwise([*starts, len(tokens)]):
        label = tokens[first][1].split("-", 1)[-1]
        if label != OUTSIDE:
            (start, _), (_, end) = tokens[first][0], tokens[after - 1][0]
            mean = float(np.mean([probability for _, _, probability in tokens[first:after]]))
            yield Entity(label, text[start:end], start, end, mean)


def best_span(logits: Array, inside: Array, counted: Array, longest: int = LONGEST) -> tuple[int, int, float]:
    """Give the first and the last token of the likeliest span, and its score: see `Labels.answer`.

    logits (tokens, 2); inside, counted (tokens,) of bool: those that may be answered with, and those over which the
    probabilities add up to 1.

    >>> yes = np.array([False, True, True, True])
    >>> first, last, score = best_span(np.log([[1.0, 1], [6, 1], [2, 4], [1, 4]]), inside=yes, counted=yes | ~yes)
    >>> first, last, round(score, 2)
    (1, 2, 0.24)
    """
    masked = np.where(counted[:, None], logits.astype(np.float64), -np.inf)
    start, end = np.where(inside[:, None], softmax(masked.T).T, 0).T
    places = np.arange(len(start))
    ahead = places - places[:, None]  # of the last token before the first
    scores = np.where((ahead >= 0) & (ahead < longest) & inside[:, None] & inside, np.outer(start, end), -1)
    first, last = np.unravel_index(int(scores.argmax()), scores.shape)
    return int(first), int(last), float(scores[first, last])
