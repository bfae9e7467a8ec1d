"""The heads of a model, as rows name them and bound to a checkpoint: they compute logits from the last hidden state.

A head passes some tokens (every token, each text's first, or its last) through its steps in order: maps, activations,
norms. The last step is a map to the logits. Paths are the same as in the reference's classes with that head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .config import Config, Frozen, decided, replace
from .modules import LayerNorm, Linear
from .steps import Norm

if TYPE_CHECKING:
    from minibert.equations.activations import Activation
    from minibert.equations.input_layer import Array
    from minibert.files.tables import Weight

    from .plan import Step
    from .steps import Binder

LABELS = "labels"  # a width: the number of classes in config.json
WORDS = "vocab_size"  # a width: the number of rows of the word table
NAMES = ("masked_word", "next_word", "classes", "token_classes", "next_sentence", "replaced_token", "answer")
POOLED = ("mean", "late")  # means over all tokens, which a text without tokens does not have
REFUSED = {"ForMultipleChoice": "multiple choice"}
STANFORD = "HF_ColBERT"  # the class of Stanford's ColBERT, in config.json
LEFTOVERS = (  # beginnings of tensors that the reference's classes write and no vector needs
    # heads
    "cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "predictions.", "pooler.", "classifier.",
    "classification_head.", "qa_outputs.", "score.", "sop_classifier.", "sequence_summary.", "multiple_choice_head.",
    "decoder.", "shared.", "final_logits_bias",  # the decoder beside an encoder
    "vision_model.", "visual_projection.", "logit_scale",  # the model of images beside that of texts
)  # fmt: skip


# -- what rows are made of ---------------------------------------------------------------------------------------


class HeadLinear(Frozen):
    """A linear map.

    out      the width of its output: a config key, `LABELS`, or the number itself
    biased   whether it has a bias, or a config key that decides it
    bias     another name of the bias in files
    tied     if the file has no weight of its own, it is the word table, unless tie_word_embeddings is false
    in_file  its path in files, if it is not the module's
    """

    path: str
    out: str | int = "hidden_size"
    biased: bool | str = True
    bias: str = ""
    tied: bool = False
    in_file: str = ""

    @property
    def weights(self) -> tuple[str, ...]:
        """List the names of its weight in files, best first."""
        return tuple(f"{path}.weight" for path in (self.path, self.in_file) if path)

    def bind(self, config: Config, binder: Binder, width: int, words: Callable[[], Weight]) -> Linear:
        """Read its tensors. `words` returns the word table (vocab, width)."""
        out = count_labels(config) if self.out == LABELS else self.out
        out = config.integer(out) if isinstance(out, str) else out
        if self.tied and not any(map(binder.stores, self.weights)) and tied(config):
            weight = words()
        else:
            weight = binder.weight(self.weights, (out, width))
        bias = binder.vector(self.biases, (out,)) if decided(config, self.biased) else None
        return Linear(weight, bias)

    @property
    def biases(self) -> tuple[str, ...]:
        """List the names that its bias can have in files, in order of preference."""
        return (f"{self.path}.bias", *filter(None, [self.bias]))


class Act(Frozen):
    """An activation: the config key that names it, or its name. `path` is its key in a trace."""

    path: str
    act: str = "hidden_act"
    word: str = ""

    def function(self, config: Config) -> Activation:
        """Return the activation, in the version with fewer passes over memory if there is one."""
        from minibert.equations import fast

        from .bound_blocks import ACTIVATIONS, activation_of

        return fast.faster(ACTIVATIONS[self.word] if self.word else activation_of(config, self.act))


HeadStep = HeadLinear | Act | Norm
MASKED = ("ForMaskedLM", "ForPreTraining")  # ends of the reference's class names


class Head(Frozen):
    """One head of a model_type.

    architectures  ends of the reference's class names that have it: "ForMaskedLM" of BertForMaskedLM
    pooling        the tokens: "every"; "first"; "last", the last token whose id is not `pad_token_id`; the "mean" of
                   all; "late": every token, then the mean of the logits; or a function of the config
    refuses        config keys that change the logits in a way that is not computed
    causal         the head is only in causal models (True), or only in the other models (False)
    single         the axis of its one number is dropped: (batch, seq), not (batch, seq, 1)
    """

    name: str
    architectures: tuple[str, ...]
    steps: tuple[HeadStep, ...]
    pooling: str | Callable[[Config], str] = "every"
    refuses: tuple[str, ...] = ()
    causal: bool | None = None
    single: bool = False

    @property
    def maps(self) -> list[HeadLinear]:
        """List its linear maps in order; the last one returns the logits."""
        return [step for step in self.steps if isinstance(step, HeadLinear)]

    def named_by(self, architectures: Iterable[str]) -> bool:
        """Return whether one of these reference classes has this head."""
        return any(name.endswith(self.architectures) for name in architectures)

    def stored(self, config: Config, binder: Binder) -> bool:
        """Return whether a file holds this head: the weights of its maps, or the bias of a tied map."""
        needed = [linear for linear in self.maps if not linear.tied] or ([] if tied(config) else self.maps)
        biases = [linear.biases for linear in self.maps if linear.tied and decided(config, linear.biased)]
        return all(any(map(binder.stores, names)) for names in [*(linear.weights for linear in needed), *biases])

    def bind(self, config: Config, binder: Binder, words: Callable[[], Weight]) -> BoundHead:
        """Read its tensors. Raises CheckpointError for a tensor that is missing or has another shape."""
        for key in self.refuses:
            if config.get(key) is not None:
                raise config.refused(f"{key!r} must be null, found {config.get(key)!r}: it is not computed here")
        width = config.integer("hidden_size")
        works: list[tuple[str, Callable[[Array], Array]]] = []
        for step in self.steps:
            if isinstance(step, HeadLinear):
                works.append((step.path, linear := step.bind(config, binder, width, words)))
                width = linear.shape[0]
            elif isinstance(step, Act):
                works.append((step.path, step.function(config)))
            else:
                works += step.bound(config, binder, "", width).items()
        path, last = works.pop()
        assert isinstance(last, Linear)  # every row ends with a map
        named = labels_of(config) if self.maps[-1].out == LABELS else {}
        pad_id = config.get("pad_token_id")
        pooling = self.pooling(config) if callable(self.pooling) else self.pooling
        return BoundHead(
            self.name, pooling, self.single, tuple(works), path, last, width, named,
            pad_id if type(pad_id) is int else None,
        )  # fmt: skip


class BoundHead(NamedTuple):
    """A head bound to a checkpoint.

    works     path -> function, in order: (tokens, width) -> (tokens, width)
    last      the map to the logits, at `path`
    labels    the number of logits; `id2label` names them if they are classes
    """

    name: str
    pooling: str
    single: bool
    works: tuple[tuple[str, Callable[[Array], Array]], ...]
    path: str
    last: Linear
    labels: int
    id2label: Mapping[int, str]
    pad_id: int | None

    def of_tokens(self, key: str) -> bool:
        """Return whether a trace has a row for each token under this key of the head, not one for each text."""
        return self.pooling == "every" or (self.pooling == "late" and key != "logits")

    def plan(self, x: str) -> dict[str, Step]:
        """Return all steps from the last hidden states to the logits; padding rows hold numbers too."""
        from .plan import IDS, REAL, Step, activated, by_key, mapped, normed

        steps = [Step(".taken", "take", partial(select_tokens, self.pooling, self.pad_id), (x, REAL, IDS), self)]
        for path, work in self.works:
            make: Any = mapped if isinstance(work, Linear) else normed if isinstance(work, LayerNorm) else activated
            steps.append(make(path, work, steps[-1].key))
        steps.append(mapped(self.path, self.last, steps[-1].key))
        if self.pooling == "late":
            return by_key([*steps, Step("logits", "logits", mean_of_texts, (self.path, REAL), self)])
        single = partial(np.squeeze, axis=-1) if self.single else np.asarray
        return by_key([*steps, Step("logits", "logits", single, (self.path,), self)])


def mean_of_texts(x: Array, real: Array) -> Array:
    """Return the mean of each text's rows that are not padding: (batch, seq, n) -> (batch, n)."""
    return np.asarray((x * real[..., None]).sum(1) / real.sum(1, keepdims=True).astype(x.dtype))


def select_tokens(pooling: str, pad_id: int | None, x: Array, real: Array, ids: Array | None) -> Array:
    """Select a head's tokens from hidden states (batch, seq, dim): all, or a row for each text (batch, dim)."""
    if pooling == "mean":
        return mean_of_texts(x, real)
    positions = positions_taken(pooling, pad_id, real.shape, ids)
    return x if positions is None else np.asarray(x[np.arange(len(x)), positions])


def positions_taken(pooling: str, pad_id: int | None, shape: tuple[int, ...], ids: Array | None) -> Array | None:
    """Return the position in each sequence of the one token that a head takes, (batch,); None if it takes all.

    "last" is the last id that is not `pad_id`, or the first if all are; without ids or `pad_id` the last position.
    """
    if pooling not in ("first", "last"):
        return None
    words = np.ones(shape, bool) if ids is None or pad_id is None else ids != pad_id
    last = shape[1] - 1 - np.argmax(words[:, ::-1], axis=1)
    return np.where(words.any(1) & (pooling == "last"), last, 0)


def architectures(config: Config) -> list[str]:
    """List the reference's class names in config.json; [] if it has something else under that key."""
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, tuple) else []


def tied(config: Config) -> bool:
    """Return whether a head may use the word table again; a family has its own default."""
    return config.flag("tie_word_embeddings", True)


def count_labels(config: Config) -> int:
    """Count the classes: `num_labels`, else the names in `id2label`, else 2.

    No list of names is made: before the tensors are read this can be any number.
    """
    named = _names_of(config)
    if config.get("num_labels") is not None:
        return config.integer("num_labels")
    return 2 if named is None else len(named)


def labels_of(config: Config) -> dict[int, str]:
    """Name the classes: `id2label`, or LABEL_0 .. if it is absent or has not `num_labels` entries."""
    named, count = _names_of(config), count_labels(config)
    if named is None or count != len(named):
        named = {}
    return {i: named.get(str(i), f"LABEL_{i}") for i in range(count)}


def _names_of(config: Config) -> Mapping[str, str] | None:
    named = config.get("id2label")
    if named is not None and not (
        isinstance(named, Mapping) and all(isinstance(text, str) and key.isdecimal() for key, text in named.items())
    ):
        raise config.refused(f"'id2label' must map numbers to names of classes, found {named!r:.80}")
    return named


# -- heads of several model types --------------------------------------------------------------------------------


def masked_word(*steps: HeadStep, architectures: tuple[str, ...] = MASKED) -> Head:
    """Return the head that predicts each masked token."""
    return Head(name="masked_word", architectures=architectures, steps=steps, causal=False)


def word_heads(*steps: HeadStep, architectures: tuple[str, ...] = MASKED) -> tuple[Head, Head]:
    """Return the two heads that predict a word for each token: the next word in causal models, else the masked one."""
    masked = masked_word(*steps, architectures=architectures)
    return masked, replace(masked, name="next_word", architectures=("LMHeadModel", "ForCausalLM"), causal=True)


def classes(*steps: HeadStep, pooling: str | Callable[[Config], str] = "first") -> Head:
    """Return the head that classifies each text."""
    return Head(name="classes", architectures=("ForSequenceClassification",), steps=steps, pooling=pooling)


CLASSIFIER = HeadLinear(path="classifier", out=LABELS)
ANSWER = Head(  # whether an answer starts at a token, and whether it ends there
    name="answer", architectures=("ForQuestionAnswering",), steps=(HeadLinear(path="qa_outputs", out=2),)
)
TOKEN_CLASSES = Head(name="token_classes", architectures=("ForTokenClassification",), steps=(CLASSIFIER,))
POOLER = (HeadLinear(path="pooler.dense"), Act(path="pooler.activation", word="tanh"))
POOLERS = (POOLER[0], HeadLinear(path="pooler"))  # maps whose tanh is `pooler_output`; the second is ALBERT's
