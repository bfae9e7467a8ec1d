"""The parts of rows of heads: what a model computes from its last hidden state.

A head takes some tokens (every one, each text's first, or its last) through its steps in order: maps, activations,
norms. The last step gives the logits. Paths are those of the reference's classes with that head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .config import Config, decided
from .frozen import Frozen, replace
from .steps import Norm

if TYPE_CHECKING:
    from minibert.equations.activations import Activation
    from minibert.equations.input_layer import Array
    from minibert.files.tables import Weight

    from .bound_blocks import Dense
    from .plan import Step
    from .steps import Binder

LABELS = "labels"  # a width: as many as config.json names classes
WORDS = "vocab_size"  # a width: a number for each row of the word table
NAMES = ("masked_word", "next_word", "classes", "token_classes", "next_sentence", "replaced_token", "answer")
POOLED = ("mean", "late")  # what is taken of all tokens, so that a text without one has none
REFUSED = {"ForMultipleChoice": "multiple choice"}
STANFORD = "HF_ColBERT"  # the class of Stanford's ColBERT, in config.json
LEFTOVERS = (  # beginnings of tensors in files of the reference's classes that no vector needs
    # of heads
    "cls.", "lm_head.", "lm_predictions.", "mask_predictions.", "predictions.", "pooler.", "classifier.",
    "classification_head.", "qa_outputs.", "score.", "sop_classifier.", "sequence_summary.", "multiple_choice_head.",
    "decoder.", "shared.", "final_logits_bias",  # of the decoder beside an encoder
    "vision_model.", "visual_projection.", "logit_scale",  # of the images beside texts
)  # fmt: skip


# -- what rows are made of ---------------------------------------------------------------------------------------


class HeadMap(Frozen):
    """A linear map.

    out     the width it gives: a config key, `LABELS`, or the number itself
    biased  whether it has a bias, or a config key that decides it; `bias` is another name of it, where a file does
            not have its own
    tied    without a weight of its own it is the word table, unless config.json says tie_word_embeddings: false
    in_file its path in files, where that is not the module's
    """

    path: str
    out: str | int = "hidden_size"
    biased: bool | str = True
    bias: str = ""
    tied: bool = False
    in_file: str = ""

    @property
    def weights(self) -> tuple[str, ...]:
        """The names under which its weight may stand, best first."""
        return tuple(f"{path}.weight" for path in (self.path, self.in_file) if path)

    def bind(self, config: Config, binder: Binder, width: int, words: Callable[[], Weight]) -> Dense:
        """Take its tensors. `words` gives the word table (vocab, width)."""
        from .bound_blocks import Dense

        out = count_labels(config) if self.out == LABELS else self.out
        out = config.integer(out) if isinstance(out, str) else out
        if self.tied and not any(map(binder.stores, self.weights)) and tied(config):
            weight = words()
        else:
            weight = binder.weight(self.weights, (out, width))
        bias = binder.vector(self.biases, (out,)) if decided(config, self.biased) else None
        return Dense(weight, bias)

    @property
    def biases(self) -> tuple[str, ...]:
        """The names under which its bias may stand, best first."""
        return (f"{self.path}.bias", *filter(None, [self.bias]))


class Act(Frozen):
    """An activation: the config key that names it, or the config's word for it. `path` is its name in a trace."""

    path: str
    act: str = "hidden_act"
    word: str = ""

    def function(self, config: Config) -> Activation:
        """Give it, in the form with fewer passes where there is one."""
        from minibert.equations import fast

        from .activations import ACTIVATIONS, activation_of

        found, _ = ACTIVATIONS[self.word] if self.word else activation_of(config, self.act)
        return fast.faster(found)


class Head(Frozen):
    """One head of a model_type.

    architectures  ends of the reference's class names that have it: "ForMaskedLM" of BertForMaskedLM
    takes          which tokens: "every"; "first"; "last", which is the last one whose id is not `pad_token_id`; the
                   "mean" of all; "late": every one, and the mean of their logits; or a function of the config
    refuses        config keys that change the logits in a way that is not computed
    causal         the head is there only where no token sees those after it (True), or only where all do (False)
    single         its one number has no axis of its own: (batch, seq), not (batch, seq, 1)
    """

    name: str
    architectures: tuple[str, ...]
    steps: tuple[HeadMap | Act | Norm, ...]
    takes: str | Callable[[Config], str] = "every"
    refuses: tuple[str, ...] = ()
    causal: bool | None = None
    single: bool = False

    @property
    def maps(self) -> list[HeadMap]:
        """Its linear maps in order; the last one gives the logits."""
        return [step for step in self.steps if isinstance(step, HeadMap)]

    def named_by(self, architectures: Iterable[str]) -> bool:
        """Whether one of these class names of the reference has it."""
        return any(name.endswith(self.architectures) for name in architectures)

    def stored(self, config: Config, binder: Binder) -> bool:
        """Whether a file holds it: the weights of its maps, or of a tied one its bias."""
        own = [each for each in self.maps if not each.tied] or ([] if tied(config) else self.maps)
        biases = [each.biases for each in self.maps if each.tied and decided(config, each.biased)]
        return all(any(map(binder.stores, names)) for names in [*(each.weights for each in own), *biases])

    def bind(self, config: Config, binder: Binder, words: Callable[[], Weight]) -> BoundHead:
        """Take its tensors. Raises CheckpointError for one that is missing or of another shape."""
        from .bound_blocks import Dense

        for key in self.refuses:
            if config.get(key) is not None:
                raise config.refused(f"{key!r} must be null, found {config.get(key)!r}: it is not computed here")
        width = config.integer("hidden_size")
        works: list[tuple[str, Callable[[Array], Array]]] = []
        for step in self.steps:
            if isinstance(step, HeadMap):
                works.append((step.path, dense := step.bind(config, binder, width, words)))
                width = dense.shape[0]
            elif isinstance(step, Act):
                works.append((step.path, step.function(config)))
            else:
                works += step.bound(config, binder, "", width).items()
        path, last = works.pop()
        assert isinstance(last, Dense)  # every row ends with a map
        named = labels_of(config) if self.maps[-1].out == LABELS else {}
        pad_id = config.get("pad_token_id")
        takes = self.takes(config) if callable(self.takes) else self.takes
        return BoundHead(
            self.name, takes, self.single, tuple(works), path, last, width, named,
            pad_id if type(pad_id) is int else None,
        )  # fmt: skip


class BoundHead(NamedTuple):
    """A head bound to a checkpoint.

    works     path -> its function, in order: (tokens, width) -> (tokens, width); `last`, at `path`, gives the logits
    labels    how many logits a token has; `id2label` names them where they are classes
    """

    name: str
    takes: str
    single: bool
    works: tuple[tuple[str, Callable[[Array], Array]], ...]
    path: str
    last: Dense
    labels: int
    id2label: Mapping[int, str]
    pad_id: int | None

    def of_tokens(self, key: str) -> bool:
        """Whether a trace has a row for each token under a key of this head, not one for each text."""
        return self.takes == "every" or (self.takes == "late" and key != "logits")

    def plan(self, x: str) -> dict[str, Step]:
        """All steps from the last hidden states to the logits; rows of padding have numbers."""
        from .bound_blocks import Dense
        from .modules import LayerNorm
        from .plan import IDS, REAL, Step, activated, by_key, mapped, normed

        steps = [Step(".taken", "take", partial(taken, self.takes, self.pad_id), (x, REAL, IDS), self)]
        for path, work in self.works:
            make: Any = mapped if isinstance(work, Dense) else normed if isinstance(work, LayerNorm) else activated
            steps.append(make(path, work, steps[-1].key))
        steps.append(mapped(self.path, self.last, steps[-1].key))
        if self.takes == "late":
            return by_key([*steps, Step("logits", "logits", mean_of_texts, (self.path, REAL), self)])
        single = partial(np.squeeze, axis=-1) if self.single else np.asarray
        return by_key([*steps, Step("logits", "logits", single, (self.path,), self)])


def mean_of_texts(x: Array, real: Array) -> Array:
    """The mean of each text's rows that are no padding: (batch, seq, n) -> (batch, n)."""
    return np.asarray((x * real[..., None]).sum(1) / real.sum(1, keepdims=True).astype(x.dtype))


def taken(takes: str, pad_id: int | None, x: Array, real: Array, ids: Array | None) -> Array:
    """Select the hidden states (batch, seq, dim) that a head takes: all, or one row of each text (batch, dim)."""
    if takes == "mean":
        return mean_of_texts(x, real)
    found = positions_taken(takes, pad_id, real.shape, ids)
    return x if found is None else np.asarray(x[np.arange(len(x)), found])


def positions_taken(takes: str, pad_id: int | None, shape: tuple[int, ...], ids: Array | None) -> Array | None:
    """Return the position in each sequence of the one token that a head takes, (batch,); None if it takes all.

    "last" is the last id that is not `pad_id`, or the first if all are; without ids or `pad_id` the last position.
    """
    if takes not in ("first", "last"):
        return None
    words = np.ones(shape, bool) if ids is None or pad_id is None else ids != pad_id
    last = shape[1] - 1 - np.argmax(words[:, ::-1], axis=1)
    return np.where(words.any(1) & (takes == "last"), last, 0)


def architectures(config: Config) -> list[str]:
    """The reference's class names in config.json; none where it has something else under that key."""
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, tuple) else []


def tied(config: Config) -> bool:
    """Whether a head may use the word table again; a family has its own default."""
    return config.flag("tie_word_embeddings", True)


def count_labels(config: Config) -> int:
    """Say how many classes there are: `num_labels`, else as many as `id2label` names; 2 by default.

    No list of names is made: before the tensors are seen this can be any number.
    """
    named = _names_of(config)
    if config.get("num_labels") is not None:
        return config.integer("num_labels")
    return 2 if named is None else len(named)


def labels_of(config: Config) -> dict[int, str]:
    """Name the classes: `id2label`, or LABEL_0 .. where it is absent or has not `num_labels` entries."""
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


# -- heads that several kin have ---------------------------------------------------------------------------------


def masked_word(
    *steps: HeadMap | Act | Norm, architectures: tuple[str, ...] = ("ForMaskedLM", "ForPreTraining")
) -> Head:
    """A word for each masked token."""
    return Head(name="masked_word", architectures=architectures, steps=steps, causal=False)


def word_heads(
    *steps: HeadMap | Act | Norm, architectures: tuple[str, ...] = ("ForMaskedLM", "ForPreTraining")
) -> tuple[Head, Head]:
    """A word for each token: the masked one where all tokens are seen, the next one where those before alone are."""
    masked = masked_word(*steps, architectures=architectures)
    return masked, replace(masked, name="next_word", architectures=("LMHeadModel", "ForCausalLM"), causal=True)


def classes(*steps: HeadMap | Act | Norm, takes: str | Callable[[Config], str] = "first") -> Head:
    """A class for each text."""
    return Head(name="classes", architectures=("ForSequenceClassification",), steps=steps, takes=takes)


CLASSIFIER = HeadMap(path="classifier", out=LABELS)
ANSWER = Head(  # whether an answer starts at a token, and whether it ends there
    name="answer", architectures=("ForQuestionAnswering",), steps=(HeadMap(path="qa_outputs", out=2),)
)
TOKEN_CLASSES = Head(name="token_classes", architectures=("ForTokenClassification",), steps=(CLASSIFIER,))
POOLER = (HeadMap(path="pooler.dense"), Act(path="pooler.activation", word="tanh"))
POOLERS = (POOLER[0], HeadMap(path="pooler"))  # maps whose tanh is `pooler_output`; the second is ALBERT's
