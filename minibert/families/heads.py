"""The heads behind the blocks, some rows for each model_type: what a model computes from its last hidden state.

A head takes some tokens (every one, each text's first, or its last) through its steps in order: maps, activations,
norms. The last step gives the logits. Paths are those of the reference's classes with that head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from minibert.equations.blocks import Activation, gelu, relu, tanh
from minibert.equations.fast import ACTIVATIONS
from minibert.equations.input_layer import Array
from minibert.files.tables import Weight

from .block_parts import NormAt, activation_of, aligned, decided
from .bound_blocks import Dense
from .config import Config
from .frozen import Frozen, replace

if TYPE_CHECKING:
    from .steps import Binder

LABELS = "labels"  # a width: as many as config.json names classes
WORDS = "vocab_size"  # a width: a number for each row of the word table
NAMES = ("masked_word", "next_word", "classes", "token_classes", "next_sentence", "replaced_token")
REFUSED = {"ForMultipleChoice": "multiple choice", "ForQuestionAnswering": "question answering"}


# -- what rows are made of ---------------------------------------------------------------------------------------


class HeadMap(Frozen):
    """A linear map.

    out     the width it gives: a config key, `LABELS`, or the number itself
    biased  whether it has a bias, or a config key that decides it; `bias` is another name of it, where a file does
            not have its own
    tied    without a weight of its own it is the word table, unless config.json says tie_word_embeddings: false
    """

    path: str
    out: str | int = "hidden_size"
    biased: bool | str = True
    bias: str = ""
    tied: bool = False

    def bind(self, config: Config, binder: Binder, width: int, words: Callable[[], Weight]) -> Dense:
        """Take its tensors. `words` gives the word table (vocab, width)."""
        out = count_labels(config) if self.out == LABELS else self.out
        out = config.integer(out) if isinstance(out, str) else out
        if self.tied and not binder.stores(f"{self.path}.weight") and tied(config):
            weight = words()
        else:
            weight = binder.weight((f"{self.path}.weight",), (out, width))
        return Dense(aligned(weight), binder.vector(self.biases, (out,)) if decided(config, self.biased) else None)

    @property
    def biases(self) -> tuple[str, ...]:
        """The names under which its bias may stand, best first."""
        return (f"{self.path}.bias", *filter(None, [self.bias]))


class Act(Frozen):
    """An activation: a config key that names it, or the function itself. `path` is its name in a trace."""

    path: str
    act: str | Activation = "hidden_act"

    def function(self, config: Config) -> Activation:
        """Give it, in the form with fewer passes where there is one."""
        found = activation_of(config, self.act)[0] if isinstance(self.act, str) else self.act
        return ACTIVATIONS.get(found, found)


class Head(Frozen):
    """One head of a model_type.

    architectures  ends of the reference's class names that have it: "ForMaskedLM" of BertForMaskedLM
    takes          which tokens: "every"; "first"; "last", which is the last one whose id is not `pad_token_id`; the
                   "mean" of all; or what says it of a config
    refuses        config keys that change the logits in a way that is not computed
    causal         the head is there only where no token sees those after it (True), or only where all do (False)
    single         its one number has no axis of its own: (batch, seq), not (batch, seq, 1)
    """

    name: str
    architectures: tuple[str, ...]
    steps: tuple[HeadMap | Act | NormAt, ...]
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
        return all(binder.stores(f"{each.path}.weight") for each in own) and all(
            any(map(binder.stores, names)) for names in biases
        )

    def bind(self, config: Config, binder: Binder, words: Callable[[], Weight]) -> BoundHead:
        """Take its tensors. Raises CheckpointError for one that is missing or of another shape."""
        for key in self.refuses:
            if config.get(key) is not None:
                raise config.refused(f"{key!r} must be null, found {config.get(key)!r}: it is not computed here")
        width, works = config.integer("hidden_size"), list[tuple[str, Callable[[Array], Array]]]()
        for step in self.steps:
            if isinstance(step, HeadMap):
                works.append((step.path, dense := step.bind(config, binder, width, words)))
                width = dense.shape[0]
            elif isinstance(step, Act):
                works.append((step.path, step.function(config)))
            else:
                works += step.bind(config, binder, "", width).items()
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

    works     path -> what it does, in order: (tokens, width) -> (tokens, width); `last`, at `path`, gives the logits
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


def architectures(config: Config) -> list[str]:
    """The reference's class names in config.json; none where it has something else under that key."""
    named = config.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, tuple) else []


def tied(config: Config) -> bool:
    """Whether a head may use the word table again; families say what holds where config.json says nothing."""
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


# -- the rows ----------------------------------------------------------------------------------------------------


def _masked(*steps: HeadMap | Act | NormAt, architectures: tuple[str, ...] = ("ForMaskedLM", "ForPreTraining")) -> Head:
    return Head(name="masked_word", architectures=architectures, steps=steps, causal=False)


def _words(
    *steps: HeadMap | Act | NormAt, architectures: tuple[str, ...] = ("ForMaskedLM", "ForPreTraining")
) -> tuple[Head, Head]:
    """A word for each token: the masked one where all tokens are seen, the next one where those before alone are."""
    masked = _masked(*steps, architectures=architectures)
    return masked, replace(masked, name="next_word", architectures=("LMHeadModel", "ForCausalLM"), causal=True)


def _classes(*steps: HeadMap | Act | NormAt, takes: str | Callable[[Config], str] = "first") -> Head:
    return Head(name="classes", architectures=("ForSequenceClassification",), steps=steps, takes=takes)


CLASSIFIER = HeadMap(path="classifier", out=LABELS)
TOKEN_CLASSES = Head(name="token_classes", architectures=("ForTokenClassification",), steps=(CLASSIFIER,))
POOLER = (HeadMap(path="pooler.dense"), Act(path="pooler.activation", act=tanh))

BERT_WORDS = (
    HeadMap(path="cls.predictions.transform.dense"),
    Act(path="cls.predictions.transform.transform_act_fn"),
    NormAt(path="cls.predictions.transform.LayerNorm"),
    HeadMap(path="cls.predictions.decoder", out=WORDS, bias="cls.predictions.bias", tied=True),
)
BERT = (
    *_words(*BERT_WORDS),
    _classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
    Head(
        name="next_sentence",
        architectures=("ForNextSentencePrediction",),
        steps=(*POOLER, HeadMap(path="cls.seq_relationship", out=2)),
        takes="first",
    ),
)

ROBERTA = (
    *_words(
        HeadMap(path="lm_head.dense"),
        Act(path="lm_head.gelu", act=gelu),  # whatever hidden_act says
        NormAt(path="lm_head.layer_norm"),
        HeadMap(path="lm_head.decoder", out=WORDS, bias="lm_head.bias", tied=True),
    ),
    _classes(
        HeadMap(path="classifier.dense"),
        Act(path="classifier.tanh", act=tanh),
        HeadMap(path="classifier.out_proj", out=LABELS),
    ),
    TOKEN_CLASSES,
)

ELECTRA = (
    *_words(
        HeadMap(path="generator_predictions.dense", out="embedding_size"),
        Act(path="generator_predictions.activation", act=gelu),
        NormAt(path="generator_predictions.LayerNorm"),
        HeadMap(path="generator_lm_head", out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    _classes(
        HeadMap(path="classifier.dense"),
        Act(path="classifier.activation", act=gelu),  # not tanh as its kin
        HeadMap(path="classifier.out_proj", out=LABELS),
    ),
    TOKEN_CLASSES,
    Head(
        name="replaced_token",
        architectures=("ForPreTraining",),
        steps=(
            HeadMap(path="discriminator_predictions.dense"),
            Act(path="discriminator_predictions.activation"),
            HeadMap(path="discriminator_predictions.dense_prediction", out=1),
        ),
        single=True,
    ),
)

MPNET = (ROBERTA[0], *ROBERTA[2:])  # never causal, so no next word

DISTILBERT = (
    _masked(
        HeadMap(path="vocab_transform"),
        Act(path="activation", act="activation"),
        NormAt(path="vocab_layer_norm", eps=1e-12),
        HeadMap(path="vocab_projector", out=WORDS, tied=True),
    ),
    _classes(HeadMap(path="pre_classifier"), Act(path="pre_classifier.relu", act=relu), CLASSIFIER),
    TOKEN_CLASSES,
)

SCORE = HeadMap(path="score", out=LABELS)
LM_HEAD = HeadMap(path="lm_head", out=WORDS, biased=False, tied=True)
GPT2 = (
    Head(name="next_word", architectures=("LMHeadModel", "DoubleHeadsModel"), steps=(LM_HEAD,), causal=True),
    _classes(replace(SCORE, biased=False), takes="last"),
    TOKEN_CLASSES,
)


def _modernbert_takes(config: Config) -> str:
    pooling = config.get("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise config.refused(f"'classifier_pooling' must be 'cls' or 'mean', found {pooling!r}")
    return "first" if pooling == "cls" else "mean"


MODERNBERT_STEPS = (
    HeadMap(path="head.dense", biased="classifier_bias"),
    Act(path="head.act", act="classifier_activation"),
    NormAt(path="head.norm", eps="norm_eps", biased="norm_bias"),
)
MODERNBERT = (
    _masked(
        *MODERNBERT_STEPS,
        HeadMap(path="decoder", out=WORDS, biased="decoder_bias", tied=True),
        architectures=("ForMaskedLM",),
    ),
    _classes(*MODERNBERT_STEPS, CLASSIFIER, takes=_modernbert_takes),
    replace(TOKEN_CLASSES, steps=(*MODERNBERT_STEPS, CLASSIFIER)),
)

ALBERT = (
    _masked(
        HeadMap(path="predictions.dense", out="embedding_size"),
        Act(path="predictions.activation"),
        NormAt(path="predictions.LayerNorm"),
        HeadMap(path="predictions.decoder", out=WORDS, bias="predictions.bias", tied=True),
    ),
    _classes(HeadMap(path="pooler"), Act(path="pooler_activation", act=tanh), CLASSIFIER),
    TOKEN_CLASSES,
)

NOMIC_BERT = (
    _masked(
        *BERT_WORDS[:2],
        NormAt(path="cls.predictions.transform.layer_norm"),
        BERT_WORDS[3],
        architectures=("ForMaskedLM",),
    ),
    _classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
)

LLAMA = (
    Head(name="next_word", architectures=("ForCausalLM",), steps=(LM_HEAD,), causal=True),
    GPT2[1],
    replace(TOKEN_CLASSES, steps=(SCORE,)),
)
GEMMA3 = (replace(LLAMA[0], refuses=("final_logit_softcapping",)), LLAMA[1])

HEADS: Mapping[str, tuple[Head, ...]] = {
    "bert": BERT,
    "ernie": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "mpnet": MPNET,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "gpt2": GPT2,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "albert": ALBERT,
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma3_text": GEMMA3,
}
"""model_type -> its heads."""
