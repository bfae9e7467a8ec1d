"""The classic mistakes of heads, each a name, one sentence, and the wrong head that a port has.

A function gives an encoder's head with one wrong part, or None where the head cannot have this mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minibert.equations import fast
from minibert.equations.blocks import gelu, gelu_tanh, tanh
from minibert.families.bound_blocks import Dense
from minibert.families.heads import BoundHead
from minibert.families.modules import LayerNorm
from minibert.models.encoder import Encoder

from .plain_blocks import Formula
from .subject import Mistake

Works = Sequence[tuple[str, Formula]]
Make = Callable[[Encoder], BoundHead | None]


def _is_act(work: Any) -> bool:
    return not isinstance(work, Dense | LayerNorm)


def _works(change: Callable[[Encoder, BoundHead], Works]) -> Make:
    """Other steps before the last map, in heads in which this changes them."""

    def make(encoder: Encoder) -> BoundHead | None:
        head = encoder.head()
        works = tuple(change(encoder, head))
        return head._replace(works=works) if works != head.works else None

    return make


def _acts(right: Callable[[Encoder, Formula], bool], wrong: Callable[[Encoder], Formula]) -> Make:
    """Another activation, where the head has one of which this is true."""

    def change(encoder: Encoder, head: BoundHead) -> Works:
        if not any(_is_act(work) and right(encoder, work) for _, work in head.works):
            return head.works
        return [(path, wrong(encoder) if _is_act(work) else work) for path, work in head.works]

    return _works(change)


def _act_is(*formulas: Formula) -> Callable[[Encoder, Formula], bool]:
    return lambda encoder, work: work in formulas


def _of_blocks(encoder: Encoder) -> Formula:
    activate = encoder.stack.blocks[0].feed_forward.activate
    return fast.ACTIVATIONS.get(activate, activate)


def _without(left_out: Callable[[Any], bool]) -> Make:
    """Without some of the steps before the last map."""
    return _works(lambda encoder, head: [step for step in head.works if not left_out(step[1])])


def _pooler_forgotten(encoder: Encoder, head: BoundHead) -> Works:
    return () if head.last.shape[1] == encoder.dim and head.takes != "every" else head.works


def _norm_first(encoder: Encoder, head: BoundHead) -> Works:
    return sorted(head.works, key=lambda step: (not isinstance(step[1], Dense), _is_act(step[1])))


def _last(change: Callable[[Encoder, Dense], Dense | None]) -> Make:
    """Another last map."""

    def make(encoder: Encoder) -> BoundHead | None:
        head = encoder.head()
        last = change(encoder, head.last)
        return None if last is None else head._replace(last=last)

    return make


def _by_the_word_table(encoder: Encoder, last: Dense) -> Dense | None:
    words = encoder.embeddings.steps[0].module.table.array()
    own = words.shape == last.weight.shape and not np.array_equal(words, last.weight)
    return Dense(words, last.bias) if own else None


def _by_scaled_words(encoder: Encoder, last: Dense) -> Dense | None:
    scale = encoder.embeddings.steps[0].module.scale
    return Dense(last.weight * last.weight.dtype.type(scale), last.bias) if scale != 1 else None


def _takes(right: tuple[str, ...], wrong: str) -> Make:
    """Another token, or the mean of all."""
    return lambda encoder: encoder.head()._replace(takes=wrong) if encoder.head().takes in right else None


ONE = "A head that takes one token of a text takes the first in BERT and its kin, the last in GPT-2."
# fmt: off
HEAD_MISTAKES: tuple[Mistake, ...] = (
    Mistake("word table where the head has its own", "This file holds a table of the head's own; only a tied head uses "
            "the word table.", _last(_by_the_word_table)),
    Mistake("word table times its factor", "The factor is of the input layer's rows; logits are products with the rows "
            "as they are stored.", _last(_by_scaled_words)),
    Mistake("head's norm forgotten", "Between the head's first map and the word table stands a LayerNorm.",
            _without(lambda work: isinstance(work, LayerNorm))),
    Mistake("head's norm before its activation", "The order is map, activation, norm.", _works(_norm_first)),
    Mistake("head's activation forgotten", "Between the head's maps stands an activation.", _without(_is_act)),
    Mistake("pooler forgotten", "The classes are not computed from the hidden state itself: a map and an activation "
            "come before.", _works(_pooler_forgotten)),
    Mistake("tanh for gelu", "This head's activation is gelu; that of BERT's pooler is tanh.",
            _acts(_act_is(gelu, fast.gelu), lambda encoder: tanh)),
    Mistake("gelu for tanh", "This head's activation is tanh; that of ELECTRA's is gelu.",
            _acts(_act_is(tanh), lambda encoder: fast.gelu)),
    Mistake("head's gelu by tanh", "This head's gelu is the exact one, by erf; the tanh form is up to 5e-4 away.",
            _acts(_act_is(gelu, fast.gelu), lambda encoder: gelu_tanh)),
    Mistake("head's gelu by erf", "This head's gelu is the tanh form (gelu_new); the exact one is up to 5e-4 away.",
            _acts(_act_is(gelu_tanh), lambda encoder: fast.gelu)),
    Mistake("the blocks' activation in the head", "This head has an activation of its own, whatever hidden_act says.",
            _acts(lambda encoder, work: work is not _of_blocks(encoder), _of_blocks)),
    Mistake("head's bias forgotten", "The last map has a bias, one number for each word or class.",
            _last(lambda encoder, last: None if last.bias is None else Dense(last.weight, None))),
    Mistake("first token instead of the last", ONE, _takes(("last",), "first")),
    Mistake("last token instead of the first", ONE, _takes(("first",), "last")),
    Mistake("first token instead of the mean", "This model's config says that its head takes the mean of all tokens.",
            _takes(("mean",), "first")),
    Mistake("mean of the tokens instead of one", ONE, _takes(("first", "last"), "mean")),
)
# fmt: on
