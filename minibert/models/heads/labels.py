"""Labels and scores: labels of texts and spans, and answers, as in transformers' pipelines; scores of pairs of texts,
and documents sorted by their scores, as in sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sentences import Vector
from minibert.errors import CheckpointError, Load, Text, error_of
from minibert.families.parts.bound_blocks import TORCH, torch_class
from minibert.families.parts.config import Config
from minibert.families.parts.heads import BoundHead
from minibert.files.tokenizer import Encoded, Texts, listed, refuse_surrogates
from minibert.models.run.attributes import check_positive, hinted
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline
from minibert.models.sentences.folder import PAIRS, RERANKER, SETTINGS
from minibert.models.sentences.sentences import Sentences, TextOptions, check_options, complete, given_once, shows

from .heads import check_numbers, logits_of, refuse_empty, refuse_long, tokens_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Activation = Callable[[Array], Array]
Pair = tuple[str, str]
OUTSIDE = "O"  # the label of a token that belongs to no span
TRUNCATE = ", or set max_seq_length of the encoder: texts are then truncated there"  # the end of an error
LONGEST = 15  # most tokens in an answer
REGRESSION, SEVERAL = "regression", "multi_label_classification"  # values of problem_type in config.json
KNOWN = {name: TORCH[name] for name in ("Identity", "Sigmoid", "Tanh", "ReLU")}  # activations of the logits


# -- labels ------------------------------------------------------------------------------------------------------


class Label(NamedTuple):
    """The name of a class and its probability."""

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
    """A span of a text, text[start:end], and p(start) * p(end)."""

    text: str
    start: int
    end: int
    score: float


class HeadPipeline(TextPipeline):
    """The pipeline of one head's logits: a number for each label of a text, or of each token."""

    head: BoundHead

    def take(self, tile: Packed) -> Array | None:
        """Return the tokens that the head takes."""
        return tokens_of(self.head, tile)

    def pool(self, tile: Packed, x: Array) -> Any:
        """Return the logits of a tile's texts, (texts, labels), or one array (tokens, labels) of each text."""
        logits = logits_of(self.head, tile, x)
        return np.split(logits, tile.starts[1:]) if self.head.pooling == "every" else logits


class ClassPipeline(HeadPipeline):
    """The pipeline of `classify`."""

    def tokenize(self, texts: list[str], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts. Raises ValueError for a text that is empty or too long."""
        encoded = super().tokenize(texts, start)
        refuse_long(encoded, self.max_length, start, TRUNCATE)
        refuse_empty(self.head, encoded, lambda i: Text(start + i, "texts"))
        return encoded


class EntityPipeline(HeadPipeline):
    """The pipeline of `entities`; `spans` receives the place of each token in its text."""

    spans: list[list[tuple[int, int] | None]]

    def tokenize(self, texts: list[str], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts. Raises ValueError for a text that is too long."""
        tokenized = self.tokenizer.encode_with_spans(texts, self.longest, start)
        encoded = [ids for ids, _ in tokenized]
        refuse_long(encoded, self.max_length, start, TRUNCATE)
        self.spans += [spans for _, spans in tokenized]
        return encoded


class Labels(Sentences):
    """A model that computes labels of texts and spans, and answers, as transformers' pipelines do."""

    @overload
    def classify(self, texts: str, k: int | None = ...) -> list[Label]: ...
    @overload
    def classify(self, texts: Iterable[str], k: int | None = ...) -> list[list[Label]]: ...

    @hinted
    def classify(self, texts: Texts, k: int | None = None) -> Any:
        """Classify texts by the head `classes`: labels and their probabilities, the likeliest first.

        One str -> a list of `Label(label, probability)`, many -> a list of lists. k: at most k labels. config.json
        names the labels (`id2label`). The probabilities are a softmax; for one label, or with problem_type
        multi_label_classification, sigmoids. No text is truncated, unless `max_seq_length` was set.

        Raises TypeError for anything but text, CheckpointError for a file without that head, ValueError for
        problem_type regression and a text that is too long, TokenizerError if there is no tokenizer.
        """
        check_positive("k", k, or_none=True)
        items = listed(texts)
        head = self.head("classes")
        problem_type = self.config.get("problem_type")
        if problem_type == REGRESSION:
            numbers = 'numbers and no classes; take them from logits(**tokenize(text), head="classes")'
            raise ValueError(f"config.json says problem_type regression: this model gives {numbers}")
        longest = self.max_seq_length if self._length_set else None
        logits = self.pipeline_of(ClassPipeline, head=head, dim=head.labels, longest=longest).all(items)
        check_numbers(logits)
        probabilities = (sigmoid if problem_type == SEVERAL or head.labels == 1 else softmax)(logits)
        likeliest = [best_labels(row, head.id2label)[:k] for row in probabilities]
        return likeliest[0] if isinstance(texts, str) else likeliest

    @overload
    def entities(self, texts: str) -> list[Entity]: ...
    @overload
    def entities(self, texts: Iterable[str]) -> list[list[Entity]]: ...

    def entities(self, texts: Texts) -> Any:
        """Find the labelled spans of a text, in order, by the head `token_classes` on each token.

        One str -> a list of `Entity(label, text, start, end, probability)`, many -> a list of lists. The span is
        text[start:end]. Tokens are joined as in transformers' token-classification pipeline with
        aggregation_strategy="simple"; the probability is their mean. As there, a text is truncated at model_max_length
        of tokenizer_config.json, or at `max_seq_length` if that was set.

        Raises TypeError for anything but text, CheckpointError for a file without that head, ValueError for a text that
        is too long, TokenizerError if there is no tokenizer.
        """
        head, items = self.head("token_classes"), listed(texts)
        longest = self.max_seq_length if self._length_set else self.sentence_config.tokenizer_length
        pipeline = self.pipeline_of(EntityPipeline, head=head, longest=longest, spans=[])
        all_logits = pipeline.all(items)
        for logits in all_logits:
            check_numbers(logits)
        parts = zip(items, pipeline.spans, map(softmax, all_logits), strict=True)
        entities = [list(grouped(text, spans, probabilities, head.id2label)) for text, spans, probabilities in parts]
        return entities[0] if isinstance(texts, str) else entities

    def answer(self, question: str, text: str) -> Answer:
        """Find the answer to a question in a text: `Answer(text, start, end, score)`, the span text[start:end].

        The head `answer` computes two logits for each token of the pair. p(start) and p(end) are softmaxes over the
        tokens of the text and the classification token, at which some models put questions without an answer. The
        answer is the span of at most 15 tokens of the text with the largest p(start) p(end), its score; among equal
        spans the first, then the shortest. Spaces at its ends are removed. Transformers' pipeline for question
        answering did the same, and widened spans to whole words.

        Raises TypeError for anything but two texts, CheckpointError for a file without that head, ValueError for a pair
        that is too long and a text without a token, TokenizerError if there is no tokenizer.
        """
        for name, value in (("question", question), ("text", text)):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, found {type(value).__name__}")
        head, tokenizer = self.head("answer"), self.sentence_tokenizer
        ((encoded, spans),) = tokenizer.encode_with_spans([question], None, pairs=[text])
        refuse_long([encoded], self.max_length, 0, " or its question")
        inside = np.array([span is not None for span in spans])
        if not inside.any():
            raise ValueError(f"the text must have a token to answer with, found {text!r:.40}")
        (logits,) = self.pipeline_of(HeadPipeline, head=head).vectors([encoded])
        check_numbers(logits)
        special = tokenizer.named.get("cls")
        counted = inside | (np.array(encoded.input_ids) == (tokenizer.id_of(special) if special else -1))
        first, last, score = best_span(logits, inside, counted)
        (start, _), (_, end) = spans[first] or (0, 0), spans[last] or (0, 0)
        answer = text[start:end]
        start += len(answer) - len(answer.lstrip())
        return Answer(answer.strip(), start, start + len(answer.strip()), score)


def best_labels(probabilities: Array, id2label: Mapping[int, str]) -> list[Label]:
    """Name the probabilities of one text, the largest first; equal probabilities keep their order.

    >>> best_labels(np.array([0.25, 0.5, 0.25]), {0: "sky", 1: "sea", 2: "land"})
    [Label(label='sea', probability=0.5), Label(label='sky', probability=0.25), Label(label='land', probability=0.25)]
    """
    named = [Label(id2label[i], probability) for i, probability in enumerate(probabilities.tolist())]
    return sorted(named, key=lambda label: label.probability, reverse=True)


def grouped(
    text: str, spans: Sequence[tuple[int, int] | None], probabilities: Array, id2label: Mapping[int, str]
) -> Iterator[Entity]:
    """Join tokens with the same label into spans, as transformers does with "simple".

    spans: each token's place in the text, None for a special token; probabilities (tokens, labels). A token joins the
    span before it if its label has the same name and does not begin with "B-"; special tokens between them are ignored.
    Spans of the label "O" are dropped.

    >>> likely = np.eye(3)[[0, 1, 2, 0]]
    >>> [*grouped("in New York", [(0, 2), (3, 6), (7, 11), None], likely, {0: "O", 1: "B-LOC", 2: "I-LOC"})]
    [Entity(label='LOC', text='New York', start=3, end=11, probability=1.0)]
    """
    best = probabilities.argmax(axis=1).tolist() if probabilities.size else []
    tokens = [(span, id2label[i], row[i]) for span, i, row in zip(spans, best, probabilities, strict=True) if span]
    kinds = [label[2:] if label.startswith(("B-", "I-")) else label for _, label, _ in tokens]
    starts = [i for i, (_, label, _) in enumerate(tokens) if not i or label[:2] == "B-" or kinds[i] != kinds[i - 1]]
    for first, after in pairwise([*starts, len(tokens)]):
        label = tokens[first][1].split("-", 1)[-1]
        if label != OUTSIDE:
            (start, _), (_, end) = tokens[first][0], tokens[after - 1][0]
            mean = float(np.mean([probability for _, _, probability in tokens[first:after]]))
            yield Entity(label, text[start:end], start, end, mean)


def best_span(logits: Array, inside: Array, counted: Array, longest: int = LONGEST) -> tuple[int, int, float]:
    """Return the first and the last token of the likeliest span, and its score: see `Labels.answer`.

    logits (tokens, 2); inside, counted (tokens,) of bool: the tokens that an answer may have, and the tokens over which
    the probabilities add up to 1.

    >>> yes = np.array([False, True, True, True])
    >>> first, last, score = best_span(np.log([[1.0, 1], [6, 1], [2, 4], [1, 4]]), inside=yes, counted=yes | ~yes)
    >>> first, last, round(score, 2)
    (1, 2, 0.24)
    """
    masked = np.where(counted[:, None], logits.astype(np.float64), -np.inf)
    start, end = np.where(inside[:, None], softmax(masked.T).T, 0).T
    places = np.arange(len(start))
    ahead = places - places[:, None]  # tokens from the first to the last
    scores = np.where((ahead >= 0) & (ahead < longest) & inside[:, None] & inside, np.outer(start, end), -1)
    first, last = np.unravel_index(int(scores.argmax()), scores.shape)
    return int(first), int(last), float(scores[first, last])


# -- pairs -------------------------------------------------------------------------------------------------------


class PredictOptions(TextOptions, total=False):
    """Options of `predict` and `rank`."""

    activation_fn: Activation | None
    """A function of the logits (n, labels), such as lambda x: x, instead of the folder's."""
    apply_softmax: bool
    """Over several labels, after the activation."""
    convert_to_numpy: Literal[True]
    """As in `encode`, and the next three too."""
    convert_to_tensor: Literal[False]
    device: Any
    threads: int | None


PREDICT: Mapping[str, Any] = {
    "prompt_name": None, "prompt": None, "batch_size": 32, "show_progress_bar": None, "activation_fn": None,
    "apply_softmax": False, "convert_to_numpy": True, "convert_to_tensor": False, "device": None, "threads": None,
}  # fmt: skip
"""The defaults, in sentence-transformers' order."""


class PairPipeline(HeadPipeline):
    """The pipeline of `predict`: pairs (first, second), or texts (text,), -> logits."""

    numbered: Callable[[int], int] = staticmethod(int)  # index in this call -> the caller's index, for messages

    def tokenize(self, pairs: list[tuple[str, ...]], start: int) -> list[Encoded]:
        """Return the ids of a chunk's pairs. Raises ValueError for a pair without a token."""
        if len({*map(len, pairs)}) > 1:  # texts and pairs
            return [ids for i, pair in enumerate(pairs, start) for ids in self.tokenize([pair], i)]
        firsts, *seconds = zip(*pairs, strict=True)
        texts, others = [self.prompt + text for text in firsts], seconds[0] if seconds else None
        encoded = self.tokenizer.encode(texts, others, True, self.longest, start)
        refuse_empty(self.head, encoded, lambda i: Text(self.numbered(start + i), "pairs"))
        return encoded


class PairScoring(Sentences):
    """A model that scores pairs of texts, like sentence-transformers' CrossEncoder."""

    @overload
    def predict(self, pairs: tuple[str, str], *args: Any, **options: Unpack[PredictOptions]) -> np.float32 | Vector: ...
    @overload
    def predict(
        self, pairs: list[tuple[str, str]] | list[list[str]], *args: Any, **options: Unpack[PredictOptions]
    ) -> Array: ...
    @overload
    def predict(
        self,
        pairs: Any = None,
        *args: Any,
        inputs: Any = None,
        sentences: Any = None,
        **options: Unpack[PredictOptions],
    ) -> Any: ...

    @shows(PREDICT, PredictOptions)
    def predict(self, pairs: Any = None, *args: Any, inputs: Any = None, sentences: Any = None, **options: Any) -> Any:
        """Score pairs of texts as sentence-transformers' CrossEncoder does: one pair -> a number, many -> (n,).

        A model of several labels returns (labels,) and (n, labels). The head `classes` computes the logits; the folder
        may name an activation, else it is a sigmoid for one label and none for more. In a pair that is too long the
        longer text is truncated first, without a message: see `max_seq_length`.

        The options are in `PredictOptions`. They go by name, or in sentence-transformers' order: `prompt_name`,
        `prompt`, `batch_size`, `show_progress_bar`, `activation_fn`, ... Its names for `pairs` work too: `inputs`, and
        the older `sentences`.

        Raises TypeError for anything but pairs, ValueError for a folder of another use, CheckpointError for a file
        without that head or an activation that is not computed here, TokenizerError if there is no tokenizer.
        """
        options = complete(PREDICT, self.predict, args, options)
        check_options(options)
        pairs = given_once("one pair of texts or a list of pairs", pairs=pairs, inputs=inputs, sentences=sentences)
        return _scores(self, pairs, options, "predict")

    @shows(PREDICT, PredictOptions)
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *args: Any,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Order documents by their score with a query, the best first, as sentence-transformers' CrossEncoder.

        -> a dict for each: corpus_id, its index among the documents; score; and text, with `return_documents`.
        Documents of equal scores keep their order. top_k: at most this many. The other options and the errors are as in
        `predict`; ValueError too for a model of several labels.

        With the folder of a MultiVectorEncoder the score is the similarity of `encode_query` and `encode_document`, and
        a prompt goes before the query.
        """
        options = complete(PREDICT, self.rank, args, options)
        check_options(options)
        if not isinstance(query, str):
            raise TypeError(f"query must be a str, found {type(query).__name__}")
        if isinstance(documents, str):
            raise TypeError("documents must be many texts, found one str; predict((query, document)) scores one")
        items = listed(documents)
        check_positive("top_k", top_k, or_none=True)
        if self.result == "tokens":
            for name in ("activation_fn", "apply_softmax"):
                if options[name]:
                    raise ValueError(f"{name} is for pairs, and this model has none; leave it out")
            wanted = self.encode_query(query, options["prompt_name"], options["prompt"], threads=options["threads"])
            every = self.encode_document(
                items, show_progress_bar=options["show_progress_bar"], threads=options["threads"]
            )
            (scores,) = self.similarity([wanted], every)
        elif (labels := scoring_head(self).labels) == 1:
            scores = _scores(self, [(query, text) for text in items], options, "rank")
        else:
            raise ValueError(f"rank needs one number a pair, but this model has {labels} labels; predict gives all")
        check_numbers(scores)
        hits = [{"corpus_id": i, "score": score} for i, score in enumerate(scores.tolist())]
        if return_documents:
            hits = [hit | {"text": text} for hit, text in zip(hits, items, strict=True)]
        return sorted(hits, key=lambda hit: hit["score"], reverse=True)[:top_k]

    def logits_pipeline(
        self, prompt_name: str | None = None, prompt: str | None = None, threads: int | None = None, **steps: Any
    ) -> PairPipeline:
        """Return the pipeline of `predict`, up to the logits (labels,). Raises as `predict`."""
        head, settings = scoring_head(self), self.sentence_config
        before = settings.prompt(prompt_name, prompt)
        return self.pipeline_of(
            PairPipeline, threads, head=head, dim=head.labels, prompt=before, longest=settings.longest, **steps
        )


def _scores(model: PairScoring, pairs: Any, options: Mapping[str, Any], method: str) -> Any:
    items, single = pairs_of(pairs)
    labels, settings = scoring_head(model).labels, model.sentence_config
    if options["activation_fn"] is None:
        activate = usual_activation(settings.activation, model.config, labels)
    else:
        activate = given_activation(options["activation_fn"])
    for i, item in enumerate(items):  # before equal pairs are dropped, so that the index is right
        refuse_surrogates(item, i)
    different = list(dict.fromkeys(items))  # so that equal pairs get equal scores
    pipeline = model.logits_pipeline(
        options["prompt_name"], options["prompt"], options["threads"], numbered=lambda i: items.index(different[i])
    )
    by_pair = dict(zip(different, pipeline.all(different, method if options["show_progress_bar"] else ""), strict=True))
    logits = np.array([by_pair[item] for item in items], model.dtype).reshape(len(items), labels)
    scores = np.asarray(activate(logits))
    if scores.shape != logits.shape:
        raise ValueError(f"activation_fn must keep the shape {logits.shape} of the logits, found {scores.shape}")
    if labels == 1:
        scores = scores[:, 0]
    elif options["apply_softmax"]:
        scores = softmax(scores)
    return scores[0] if single else scores


def scoring_head(model: Sentences) -> BoundHead:
    """Return the head for scores of pairs.

    Raises ValueError for a folder of another use, CheckpointError without that head.
    """
    model.sentence_config.check_use(PAIRS)
    if "next_word" in model.heads and "classes" not in model.heads:
        other = "rerankers that answer with a word, yes or no, are not computed here"
        message = f"the heads of this model are {', '.join(model.heads)}, and {other}; "
        raise error_of(CheckpointError, message, Load(f"a reranker with a head of classes, such as {RERANKER}"))
    return model.head("classes")


def pairs_of(pairs: Any) -> tuple[list[Pair], bool]:
    """Return one pair or many as a list, and whether it was one. Raises TypeError for anything else.

    >>> pairs_of(("a", "b")), pairs_of([["a", "b"]]), pairs_of([])
    (([('a', 'b')], True), ([('a', 'b')], False), ([], False))
    """
    if isinstance(pairs, str | bytes | Mapping | Set) or hasattr(pairs, "columns") or not isinstance(pairs, Iterable):
        raise TypeError(f"pairs must be one pair of texts or a list of pairs, found {type(pairs).__name__}")
    items = list(pairs)
    single = len(items) == 2 and all(isinstance(item, str) for item in items)
    return [_pair(pair, i) for i, pair in enumerate([items] if single else items)], single


def _pair(pair: Any, i: int) -> Pair:
    texts = list(pair) if isinstance(pair, list | tuple | np.ndarray) and np.ndim(pair) < 2 else [pair]
    if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise error_of(TypeError, Text(i, "pairs"), f" must be a pair of texts, (query, document), found {pair!r:.80}")
    return str(texts[0]), str(texts[1])


# -- what is done to the logits ----------------------------------------------------------------------------------


def usual_activation(path: str | None, config: Config, labels: int) -> Activation:
    """Return a folder's activation, from the first of the three places that sentence-transformers has used for it.

    path: from the folder's settings. The default is a sigmoid for one label, none for more. Raises CheckpointError for
    a class that is not computed here.
    """
    section = config.get("sentence_transformers")
    older = "sbert_ce_default_activation_function"
    if path is not None:
        where = SETTINGS
    elif isinstance(section, Mapping) and "activation_fn" in section:
        path, where = section["activation_fn"], "config.json: sentence_transformers"
    else:
        path, where = config.get(older), f"config.json: {older}"
    if path is None:
        return KNOWN["Sigmoid" if labels == 1 else "Identity"]
    if (name := torch_class(path)) not in KNOWN:
        known = ", ".join(f"torch.nn.{name}" for name in KNOWN)
        advice = "pass a function of an array as activation_fn, or take the logits: activation_fn=lambda x: x"
        raise CheckpointError(f"{where} asks for the activation {path!r}, but known are {known}; {advice}")
    return KNOWN[name]


def given_activation(passed: Any) -> Activation:
    """Check a caller's activation: a function of an array, or a known module of torch. Raises TypeError."""
    of_torch = type(passed).__module__.startswith("torch.nn.")
    activation: Activation | None = KNOWN.get(type(passed).__name__) if of_torch else passed
    if not callable(activation) or isinstance(activation, type):
        known = ", ".join(KNOWN)
        raise TypeError(f"activation_fn must be a function of an array, or torch's {known}, found {passed!r:.80}")
    return activation
