"""Scores of pairs of texts, as sentence-transformers' CrossEncoder gives them, and documents in the order of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any, overload

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sentences import Vector
from minibert.errors import CheckpointError, Load, Text, error_of
from minibert.families.parts.bound_blocks import TORCH, torch_class
from minibert.families.parts.config import Config
from minibert.families.parts.heads import BoundHead
from minibert.files.tokenizer import Encoded, listed, refuse_surrogates
from minibert.models.run.pipeline import Pipeline, check_positive
from minibert.models.sentences.arguments import PredictOptions, check_known, given_once, shows, taken
from minibert.models.sentences.folder import PAIRS, RERANKER, SETTINGS
from minibert.models.sentences.sentences import Sentences

from .heads import check_numbers, logits_of, refuse_empty, tokens_of

Activation = Callable[[Array], Array]
Pair = tuple[str, str]
KNOWN = {name: TORCH[name] for name in ("Identity", "Sigmoid", "Tanh", "ReLU")}  # what a folder may ask for


class Pairs(Sentences):
    """A model that scores pairs of texts, as sentence-transformers' CrossEncoder."""

    @overload
    def predict(self, pairs: tuple[str, str], *given: Any, **options: Any) -> np.float32 | Vector: ...
    @overload
    def predict(self, pairs: list[tuple[str, str]] | list[list[str]], *given: Any, **options: Any) -> Array: ...
    @overload
    def predict(self, *pairs: Any, **options: Any) -> Any: ...

    @shows(PredictOptions)
    def predict(self, pairs: Any = None, *given: Any, inputs: Any = None, sentences: Any = None, **options: Any) -> Any:
        """Score pairs of texts as sentence-transformers' CrossEncoder does: one pair -> a number, many -> (n,).

        A model of several labels gives (labels,) and (n, labels). The head `classes` gives the logits; what is done to
        them is what the folder says, else a sigmoid for one label and nothing for more. Of a pair that is too long the
        longer text is truncated first, without a message: see `max_seq_length`.

        The options, in its order or by name, are those of `PredictOptions`: `prompt_name`, `prompt`, `batch_size`,
        `show_progress_bar`, `activation_fn`, ... `inputs` is its name for `pairs`; `sentences` its older one.

        Raises TypeError for anything but pairs, ValueError for a folder of another use, CheckpointError for a file
        without that head or an activation that is not computed here, TokenizerError where there is no tokenizer.
        """
        asked = taken(PredictOptions, self.predict, given, options)
        check_known(asked)
        pairs = given_once("one pair of texts or a list of pairs", pairs=pairs, inputs=inputs, sentences=sentences)
        return _scores(self, pairs, asked, "predict")

    @shows(PredictOptions)
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *given: Any,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Order documents by how well they answer a query, the best first, as sentence-transformers' CrossEncoder.

        -> a dict for each: corpus_id, its number among the documents; score; and text, with `return_documents`. Of
        equal scores the first document comes first. `top_k`: at most this many. All else that is passed, in its order
        or by name, or raised is as in `predict`; ValueError too for a model of several labels.

        A folder of a MultiVectorEncoder has no pairs: the score is the similarity of `encode_query` and
        `encode_document`, and a prompt is the query's.
        """
        asked = taken(PredictOptions, self.rank, given, options)
        check_known(asked)
        if not isinstance(query, str):
            raise TypeError(f"query must be a str, found {type(query).__name__}")
        if isinstance(documents, str):
            raise TypeError("documents must be many texts, found one str; predict((query, document)) scores one")
        items, _ = listed(documents)
        check_positive("top_k", top_k, or_none=True)
        if self.sentence_config.late:
            for name in ("activation_fn", "apply_softmax"):
                if getattr(asked, name):
                    raise ValueError(f"{name} is for pairs, and this model has none; leave it out")
            wanted = self.encode_query(query, asked.prompt_name, asked.prompt, threads=asked.threads)
            every = self.encode_document(items, show_progress_bar=asked.show_progress_bar, threads=asked.threads)
            (scores,) = self.similarity([wanted], every)
        elif (labels := scoring_head(self).labels) == 1:
            scores = _scores(self, [(query, text) for text in items], asked, "rank")
        else:
            raise ValueError(
                f"rank needs one number a pair, but this model has {labels} labels; predict gives them all"
            )
        check_numbers(scores)
        found = [{"corpus_id": i, "score": score} for i, score in enumerate(scores.tolist())]
        if return_documents:
            found = [each | {"text": text} for each, text in zip(found, items, strict=True)]
        return sorted(found, key=lambda each: each["score"], reverse=True)[:top_k]

    def logits_pipeline(
        self,
        prompt_name: str | None = None,
        prompt: str | None = None,
        threads: int | None = None,
        *,
        numbered: Callable[[int], int] = int,
    ) -> Pipeline:
        """Give the steps of `predict` up to the logits (labels,), for callers with their own loop.

        They take pairs (first, second) and, for a model of labels, texts (text,). `numbered`: which of a caller's pairs
        is the i-th here, for messages. What is raised is as in `predict`.
        """
        head, own, tokenizer = scoring_head(self), self.sentence_config, self.sentence_tokenizer
        before = own.prompt(prompt_name, prompt)

        def split(chunk: list[Any], start: int) -> list[Encoded]:
            if len(set(map(len, chunk))) > 1:  # texts and pairs
                return [each for i, one in enumerate(chunk, start) for each in split([one], i)]
            firsts, *seconds = zip(*chunk, strict=True)
            texts, pairs = [before + text for text in firsts], seconds[0] if seconds else None
            return tokenizer.encode(texts, pairs, True, own.longest, start)

        def tokenize(chunk: list[Any], start: int) -> list[Encoded]:
            encoded = split(chunk, start)
            refuse_empty(head, encoded, lambda i: Text(numbered(start + i), "pairs"))
            return encoded

        return self.each_text(tokenize, partial(logits_of, head), threads, take=partial(tokens_of, head))


def _scores(model: Pairs, pairs: Any, asked: PredictOptions, method: str) -> Any:
    items, single = pairs_of(pairs)
    labels, own = scoring_head(model).labels, model.sentence_config
    if asked.activation_fn is None:
        activate = usual_activation(own.activation, model.config, labels)
    else:
        activate = given_activation(asked.activation_fn)
    for i, item in enumerate(items):  # the tokenizer would count them without those that are equal
        refuse_surrogates(item, i)
    different = list(dict.fromkeys(items))  # once each; without the same bits, equal pairs get equal scores
    pipeline = model.logits_pipeline(
        asked.prompt_name, asked.prompt, asked.threads, numbered=lambda i: items.index(different[i])
    )
    rows = dict(zip(different, pipeline.all(different, method if asked.show_progress_bar else ""), strict=True))
    logits = np.array([rows[item] for item in items], model.dtype).reshape(len(items), labels)
    scores = np.asarray(activate(logits))
    if scores.shape != logits.shape:
        raise ValueError(f"activation_fn must keep the shape {logits.shape} of the logits, found {scores.shape}")
    if labels == 1:
        scores = scores[:, 0]
    elif asked.apply_softmax:
        scores = softmax(scores)
    return scores[0] if single else scores


def scoring_head(model: Sentences) -> BoundHead:
    """Give the head whose logits are scores of pairs.

    Raises ValueError for a folder of another use, CheckpointError where there is no such head.
    """
    model.sentence_config.check_use(PAIRS)
    if "next_word" in model.heads and "classes" not in model.heads:
        raise error_of(
            CheckpointError,
            f"the heads of this model are {', '.join(model.heads)}, and rerankers that answer with a word, yes or no, "
            "are not computed here; ",
            Load(f"a reranker with a head of classes, such as {RERANKER}"),
        )
    return model.head("classes")


def pairs_of(pairs: Any) -> tuple[list[Pair], bool]:
    """Make a list of pairs of one pair or many, and say whether it was one. Raises TypeError for anything else.

    >>> pairs_of(("a", "b")), pairs_of([["a", "b"]]), pairs_of([])
    (([('a', 'b')], True), ([('a', 'b')], False), ([], False))
    """
    if isinstance(pairs, str | bytes | Mapping | Set) or hasattr(pairs, "columns") or not isinstance(pairs, Iterable):
        raise TypeError(f"pairs must be one pair of texts or a list of pairs, found {type(pairs).__name__}")
    items = list(pairs)
    single = len(items) == 2 and all(isinstance(each, str) for each in items)
    return [_pair(each, i) for i, each in enumerate([items] if single else items)], single


def _pair(pair: Any, i: int) -> Pair:
    texts = list(pair) if isinstance(pair, list | tuple | np.ndarray) and np.ndim(pair) < 2 else [pair]
    if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        raise error_of(TypeError, Text(i, "pairs"), f" must be a pair of texts, (query, document), found {pair!r:.80}")
    return str(texts[0]), str(texts[1])


# -- what is done to the logits ----------------------------------------------------------------------------------


def usual_activation(path: str | None, config: Config, labels: int) -> Activation:
    """Give the activation that a folder asks for: the first of three places where sentence-transformers has kept it.

    path: of the folder's own settings. Without any: sigmoid for one label, nothing for more. Raises CheckpointError for
    a class that is not computed here.
    """
    own = config.get("sentence_transformers")
    older = "sbert_ce_default_activation_function"
    if path is not None:
        where = SETTINGS
    elif isinstance(own, Mapping) and "activation_fn" in own:
        path, where = own["activation_fn"], "config.json: sentence_transformers"
    else:
        path, where = config.get(older), f"config.json: {older}"
    if path is None:
        return KNOWN["Sigmoid" if labels == 1 else "Identity"]
    if (name := torch_class(path)) not in KNOWN:
        known = ", ".join(f"torch.nn.{name}" for name in KNOWN)
        raise CheckpointError(
            f"{where} asks for the activation {path!r}, but known are {known}; pass a function of an array as "
            "activation_fn, or take the logits: activation_fn=lambda x: x"
        )
    return KNOWN[name]


def given_activation(given: Any) -> Activation:
    """Take a caller's activation: a function of an array, or a module of torch that is known here.

    Raises TypeError for anything else.
    """
    of_torch = type(given).__module__.startswith("torch.nn.")
    found: Activation | None = KNOWN.get(type(given).__name__) if of_torch else given
    if not callable(found) or isinstance(found, type):
        raise TypeError(
            f"activation_fn must be a function of an array, or torch's {', '.join(KNOWN)}, found {given!r:.80}"
        )
    return found
