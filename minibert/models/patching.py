"""Activation patching maps one prediction: which hidden states carry it, block by block and token by token.

Sources
    Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation Analysis" (arXiv:2004.12265)
    Meng et al. 2022, "Locating and Editing Factual Associations in GPT" (arXiv:2202.05262): the map
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from minibert.equations.heads import log_softmax
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, Load, error_of
from minibert.families.parts.heads import BoundHead

from .heads.heads import check_numbers, logit_pieces

if TYPE_CHECKING:
    from .encoder import Encoder

WORDS = ("masked_word", "next_word")  # heads whose labels are tokens
AT_ONCE = 2048  # tokens of a call: more take more memory
LEAST = 0.01  # shares of a smaller difference of log probabilities are large for any change of the text


class PatchingMap(NamedTuple):
    """A predicted token, and the share of its log probability that each hidden state restores in another text.

    shares     (blocks + 1, seq), float64: row i is for `hidden_states.i`, before block i; the last row after all blocks
    ids        (2, seq), of the text and of the other text
    token      the position of the prediction
    label      the id that the text predicts there
    clean      log probability of the label in the text, and `corrupted`, in the other text
    """

    shares: Array
    ids: Array
    token: int
    label: int
    clean: float
    corrupted: float


def restored(patched: Array, clean: float, corrupted: float) -> Array:
    """Return the share of the difference between the clean and the corrupted run that a patched run restores.

        y = (patched - corrupted) / (clean - corrupted)

    patched (...), a number for each patched run -> (...). 0: the patch changes nothing; 1: it restores everything;
    below 0: it makes the difference larger. Source: Vig et al. 2020, the indirect effect over the total one.

    >>> restored(np.array([-5.0, -4.0, -1.0]), clean=-1.0, corrupted=-5.0)
    array([0.  , 0.25, 1.  ])
    """
    return np.asarray((patched - corrupted) / (clean - corrupted))


def patching_map(encoder: Encoder, text: str, other: str, token: int | None = None) -> PatchingMap:
    """Patch each hidden state of a text into the run of another, and measure how much of the prediction it restores.

        shares[i, t] = restored(log p(label), ...), where `other` runs with hidden_states.i[t] of `text`

    label is the likeliest token of `text` at `token`: by default at its mask, or, with a model of next words, after its
    last token. All tokens of a state are patched in one batch, or in several if there are many.

    Raises CheckpointError if the file has no head for words; ValueError if the texts have different token counts or the
    same tokens, if there is not exactly one mask, or if their probabilities of the label are less than 1 % apart;
    IndexError for a token beyond the text.
    """
    head, batch, other_batch = _word_head(encoder), encoder.tokenize(text), encoder.tokenize(other)
    ids = _compared(batch["input_ids"], other_batch["input_ids"])
    place = _place(encoder, ids, head.name == "masked_word", token)

    def log_probabilities(last: Array) -> Array:
        logits = np.concatenate([piece for _, piece in logit_pieces(head, last[:, place])], axis=1)
        check_numbers(logits)
        return log_softmax(logits.astype(np.float64))

    trace, (states, seq) = encoder.trace(**batch), (len(encoder.stack.blocks) + 1, ids.shape[1])
    of_text = log_probabilities(trace[f"hidden_states.{states - 1}"])[0]
    label = int(of_text.argmax())
    clean, corrupted = float(of_text[label]), float(log_probabilities(encoder(**other_batch))[0, label])
    if abs(clean - corrupted) < LEAST:
        chances = f"{np.exp(clean):.4g} and {np.exp(corrupted):.4g}, less than 1 % apart"
        why = f"the texts give the likeliest word at token {place} the probabilities {chances}"
        raise ValueError(f"{why}, so there is no difference to restore; choose another text or token")
    patched, step = np.empty((states, seq)), max(1, AT_ONCE // seq)
    for i, first in product(range(states), range(0, seq, step)):
        tokens, rows = np.arange(first, min(first + step, seq)), trace[f"hidden_states.{i}"][0]

        def put(values: Array, tokens: Array = tokens, rows: Array = rows) -> Array:
            values[np.arange(len(tokens)), tokens] = rows[tokens]  # text t of the batch gets the values of token t
            return values

        repeated = {key: np.repeat(value, len(tokens), axis=0) for key, value in other_batch.items()}
        patched[i, tokens] = log_probabilities(encoder(**repeated, change={f"hidden_states.{i}": put}))[:, label]
    return PatchingMap(restored(patched, clean, corrupted), ids, place, label, clean, corrupted)


def _word_head(encoder: Encoder) -> BoundHead:
    """Choose the head whose labels are tokens."""
    name = next((name for name in encoder.heads if name in WORDS), None)
    if name is None:
        message = "this model's file has no head that predicts a word, masked or next; "
        raise error_of(CheckpointError, message, Load("a model with such a head"))
    return encoder.head(name)


def _compared(text: Array, other: Array) -> Array:
    """Stack the ids of both texts."""
    if text.shape != other.shape:
        counts = f"found {text.shape[1]} and {other.shape[1]}"
        raise ValueError(f"the two texts must have as many tokens, {counts}; exchange words of one token each")
    if np.array_equal(text, other):
        raise ValueError("the two texts have the same tokens; change a word in one of them")
    return np.concatenate([text, other])


def _place(encoder: Encoder, ids: Array, masked: bool, token: int | None) -> int:
    """Choose the position whose prediction is mapped."""
    tokenizer, seq = encoder.embeddings.tokenizer, ids.shape[1]
    if token is None and masked:
        mask = tokenizer.mask or "mask"
        positions = np.flatnonzero(ids[0] == tokenizer.id_of(mask)).tolist()
        if len(positions) != 1:
            several = f"more than one {mask}; choose the token of one, of {positions}"
            none = f"no {mask}; write it in the place of one word"
            raise ValueError(f"the text has {several if positions else none}")
        (token,) = positions
    token = seq - 1 if token is None else token
    if not 0 <= token < seq:
        raise IndexError(f"token is {token}, but the text has the tokens 0..{seq - 1}; `explain` lists them")
    if masked and ids[0, token] != ids[1, token]:
        names = " and ".join(map(repr, encoder.tokens(ids[:, token])))
        raise ValueError(f"both texts must have the same token where a word is predicted, found {names} at {token}")
    return token
