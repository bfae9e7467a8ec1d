"""Questions that a text answers: the head `answer` says where the answer starts and where it ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.models.sentences.sentences import Sentences

from .heads import checked_logits, refuse_long

LONGEST = 15  # tokens of an answer


class Answer(NamedTuple):
    """A span of a text, text[start:end], and the product of the probabilities that it starts and ends there."""

    text: str
    start: int
    end: int
    score: float


class Answers(Sentences):
    """A model that finds the answer to a question in a text."""

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


def best_span(logits: Array, inside: Array, counted: Array, longest: int = LONGEST) -> tuple[int, int, float]:
    """Give the first and the last token of the likeliest span, and its score: see `Answers.answer`.

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
