"""Answers of the live page, `minibert explain --live`: JSON in, JSON out; `server` serves them.

Every number is of a `trace`, with `change=` where something is switched off or put in, or of a formula of `equations`
on it. The page is the one of `minibert explain --html` with a part more, and draws each state as that page does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sampling import drawn, next_word_probabilities
from minibert.equations.sentences import cosine, mean
from minibert.equations.similarity import top_indices
from minibert.errors import Option, parts_of
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.patching import patching_map
from minibert.show.page import page_prediction
from minibert.show.page.page import (
    KEPT,
    Beside,
    LivePart,
    Run,
    check_size,
    contents,
    first_choice,
    shown_tokens,
    written,
)
from minibert.show.page.page_parts import as_json, filled
from minibert.show.terms import PARTS, shares_of, terms_of
from minibert.show.text.text import visible
from minibert.threads.computing import compute

from .cell import opened_cell
from .changes import change_of, with_replaced
from .kinds import named_kinds
from .state import State, integer, read_object, read_state

MOST_TOKENS = 128
FEW_POSITIONS = 24
COMPARED = 5  # likeliest predictions of each of two runs
MAPPED = 32  # tokens of a map: each has a run for each block
REMEMBERED = 4  # runs
SHOWN = 12  # likeliest words beside a sampled one
SAMPLED = ("masked_word", "next_word")  # heads whose labels are words
SCRIPTS = ("live", "live_heads", "live_changes", "live_cell", "live_map", "live_sampling")


class Runs(NamedTuple):
    """The run of a state, and that of its text as it was typed."""

    run: Run
    typed: Run


class Live:
    """Answer a live page's requests with one model; safe to call from many threads at once.

    name  the model's name on the page
    """

    def __init__(self, model: EmbeddingLayer | Encoder, name: str | None = None) -> None:
        self.encoder: Encoder | None = None if isinstance(model, EmbeddingLayer) else model
        self.layer = model if isinstance(model, EmbeddingLayer) else model.embeddings
        self.name = name
        self.head, self.why_none = (None, "") if self.encoder is None else page_prediction.shown_head(self.encoder)
        self._runs = lru_cache(REMEMBERED)(self._computed)

    @property
    def answers(self) -> dict[str, Callable[[Any], Any]]:
        """Map each question's name to the method that answers it. Each raises ValueError, in words for the page."""
        every = dict(state=self.state, sample=self.sample, cell=self.cell, map=self.map, saved=self.saved)
        return {name: partial(self._in_turn, answer) for name, answer in every.items()}

    def _in_turn(self, answer: Callable[[Any], Any], given: Any) -> Any:
        """Answer as one of several callers: BLAS's threads would wait for each other on busy cores."""
        found: list[Any] = []
        threads = None if self.encoder is None else self.encoder.threads
        compute(lambda given: found.append(answer(given)), [given], threads)
        return found[0]

    def usual_text(self) -> str:
        """A text to begin with: with a mask where the model finds masked words, short where it has few positions."""
        longest = self.layer.max_length
        mask = self.layer.tokenizer.mask if self.head is not None and self.head.name == "masked_word" else None
        if longest is not None and longest < FEW_POSITIONS:
            return f"questi{mask}n" if mask else "wonderfu"
        return f"The bank of the river was {mask or 'muddy'}."

    def page(self, text: str, saved: dict[str, Any] | None = None) -> str:
        """Give the page, open at a text. saved: a state that needs no server, as `Live.saved` writes it."""
        state = State(text) if saved is None else read_state(saved["state"])
        runs = self._runs(state)
        numbers = as_json(self._live(state, runs) | ({"saved": saved} if saved else {}))
        scripts = "\n".join(f"<script>\n{filled(f'page_{name}.js')}</script>" for name in SCRIPTS)
        data = f'<script type="application/json" id="livedata">{numbers}</script>'
        elements = filled("page_live.html") + data
        live = LivePart(filled("page_live.css"), filled("page_asked.html"), elements, scripts, saved is not None)
        run = runs.run if self.encoder is None else runs.run._replace(beside=runs.run.beside or Beside("", [], {}))
        return written(run, visible(state.text, KEPT), self.name, self.why_none, live)

    def state(self, given: Any) -> dict[str, Any]:
        """Give the numbers that the page draws of a state."""
        state = read_state(given)
        runs = self._runs(state)
        found = contents(runs.run)
        return {
            "numbers": {"besidedata": None} | found.numbers | {"livedata": self._live(state, runs)},
            "tokens": found.tokens,
            "norm": found.norm,
            "about": found.about,
            "text": visible(state.text, KEPT),
        }

    def sample(self, given: Any) -> dict[str, Any]:
        """Draw a word at a token's position by temperature, top-k and top-p; give the likeliest, before and after.

        k 0 leaves top-k out, temperature 0 takes the likeliest. Raises ValueError for other settings than those of
        `next_word_probabilities`.
        """
        known = ("state", "token", "temperature", "k", "p", "seed")
        fields = read_object(given, "the question", known)
        token, k, seed = (integer(fields.get(name), name) for name in ("token", "k", "seed"))
        temperature, p = (_number(fields.get(name), name) for name in ("temperature", "p"))
        runs = self._runs(read_state(fields.get("state")))
        if self.encoder is None or self.head is None or self.head.name not in SAMPLED:
            raise ValueError("this model has no head for words, so there is nothing to choose from")
        logits = runs.run.trace["logits"][0]
        if token >= len(logits):
            raise ValueError(f"token {token} is not there: the text has {len(logits)}; choose another one")
        tokenizer, ids = self.layer.tokenizer, runs.run.batch["input_ids"][0].tolist()
        chosen = logits[token].astype(np.float64)
        if temperature == 0:  # the likeliest
            after = np.eye(1, len(chosen), int(chosen.argmax()))[0]
        else:
            after = next_word_probabilities(chosen, temperature, k or None, p)
        word, plain = drawn(after, np.random.default_rng(seed).random()), softmax(chosen)
        shown = np.argsort(-chosen, kind="stable")[:SHOWN].tolist()
        last = self.head.name == "next_word" and token + 1 == len(ids)
        name = partial(page_prediction.token_name, self.encoder)
        return {
            "words": [[name(i), float(plain[i]), float(after[i])] for i in shown],
            "kept": int(np.count_nonzero(after)),
            "sampled": [name(word), float(after[word])],
            "appended": tokenizer.decode([*ids, word])[len(tokenizer.decode(ids)) :] if last else None,
        }

    def cell(self, given: Any) -> dict[str, Any]:
        """One cell of attention, number by number."""
        fields = read_object(given, "the question", ("state", "block", "head", "query", "key"))
        numbers = [integer(fields.get(name), name) for name in ("block", "head", "query", "key")]
        state = read_state(fields.get("state"))
        runs = self._runs(state)
        if self.encoder is None:
            raise ValueError("this model has no blocks here, so it has no attention weights")
        found, (block, *cell) = opened_cell(self.encoder, runs.run.trace, *numbers), numbers
        for a, b in set(state.terms) if block == 0 else ():
            number = -float(terms_of(self.encoder, runs.run.batch)[(a, b, *cell)])
            found["terms"].append({"name": f"{PARTS[a]} with {PARTS[b]}, taken out", "number": number})
            found["sum"] += number
        return found

    def map(self, given: Any) -> dict[str, Any]:
        """Map which hidden states of the text carry its prediction at a token into the second text's run.

        Both texts are as typed: see `patching_map`.
        """
        fields = read_object(given, "the question", ("state", "token"))
        state, token = read_state(fields.get("state")), integer(fields.get("token"), "token")
        if self.encoder is None or not state.beside:
            raise ValueError("a map needs a model with blocks and a second text; write one at the top")
        count = self._batch(state.text, "the text")["input_ids"].shape[1]
        if count > MAPPED:
            raise ValueError(
                f"a map takes up to {MAPPED} tokens, found {count}: each of them is a run; shorten the text"
            )
        found = patching_map(self.encoder, state.text, state.beside, token)
        name = partial(page_prediction.token_name, self.encoder)
        pairs = found.ids.T.tolist()
        return {
            "shares": found.shares.tolist(),
            "tokens": [name(own) if own == other else f"{name(own)} | {name(other)}" for own, other in pairs],
            "token": found.token,
            "word": name(found.label),
            "chances": np.exp([found.clean, found.corrupted]).tolist(),
        }

    def saved(self, given: Any) -> dict[str, str]:
        """Write one state as a page that needs no server; the request stands in it."""
        known = ("state", "token", "sample", "cell", "map")
        fields = read_object(given, "the question", known)
        return {"html": self.page("", {name: fields.get(name) for name in known})}

    # -- runs ------------------------------------------------------------------------------------------------

    def _batch(self, text: str, what: str) -> dict[str, Any]:
        most = min(self.layer.max_length or MOST_TOKENS, MOST_TOKENS)
        try:
            batch: dict[str, Any] = self.layer.tokenize(text)
        except ValueError as error:
            if not any(isinstance(part, Option) for part in parts_of(error)):
                raise
            # it names an argument of `tokenize`, which the page does not have
            raise ValueError(f"{what} has more tokens than the {most} that this page takes; shorten it") from None
        count = batch["input_ids"].shape[1]
        if not 0 < count <= MOST_TOKENS:
            raise ValueError(f"{what} has {count} tokens, and this page takes 1 to {most}; change it")
        check_size(self.encoder or self.layer, count)
        return batch

    def _computed(self, state: State) -> Runs:
        batch, causal = self._batch(state.text, "the text"), bool(self.encoder and self.encoder.stack.causal)
        first = first_choice(self.layer, batch["input_ids"][0], causal)
        if self.encoder is None:
            if state._replace(text="") != State(""):
                raise ValueError("this model has no blocks here, so only the text can be changed")
            typed = Run(self.layer, None, None, batch, self.layer.trace(**batch), first)
            return Runs(typed, typed)
        head = self.head and self.head.name
        other = None
        if state.beside:
            pair = self._batch(state.beside, "the other text")
            other = Beside(state.beside, shown_tokens(self.layer, pair["input_ids"]), self.encoder.trace(**pair))
        batch["input_ids"] = with_replaced(self.layer, batch["input_ids"], state.replaced)
        change = change_of(self.encoder, state, other and other.trace, batch)
        trace = self.encoder.trace(**batch, change=change or None, head=head)
        adds_up = not (state.blocks or state.patches)
        run = Run(self.layer, self.encoder, self.head, batch, trace, first, other, adds_up)
        as_typed = state._replace(beside="") == state.typed
        return Runs(run, run._replace(beside=None) if as_typed else self._runs(state.typed).typed)

    def _live(self, state: State, runs: Runs) -> dict[str, Any]:
        """Give the numbers of the page's live part."""
        told: dict[str, Any] = {
            "state": state.as_json,
            "family": self.layer.family.model_type,
            "half": len(self.layer.family.sides) > 1,
            "blocks": 0,
            "words": False,
        }
        if self.encoder is None:
            return told
        blocks = len(self.encoder.stack.blocks)
        weights = np.stack([runs.run.trace[f"attentions.{i}"][0] for i in range(blocks)])
        return told | {
            "blocks": blocks,
            "words": self.head is not None and self.head.name in SAMPLED,
            "kinds": self._kinds(weights, runs.run.batch["input_ids"][0]),
            "change": self._change(self.encoder, runs),
            "terms": _terms(self.encoder, runs.run.batch),
        }

    def _kinds(self, weights: Array, input_ids: Array) -> dict[str, Any]:
        """Name each head's kind, with the tokenizer's name of the separator."""
        name = self.layer.tokenizer.named.get("sep")
        return named_kinds(weights, input_ids, self.layer.tokenizer.id_of(name) if name else None, name)

    def _change(self, encoder: Encoder, runs: Runs) -> dict[str, Any]:
        """Measure how far a change has moved the prediction of each token; without a head, the mean of all tokens."""
        if self.head is None:
            last = f"hidden_states.{len(encoder.stack.blocks)}"
            both = [mean(run.trace[last]) for run in (runs.typed, runs.run)]
            return {"cosine": float(cosine(*both)[0, 0])}
        activate, chance = page_prediction.activation_of(encoder, self.head)
        k, every = min(COMPARED, self.head.labels), [run.trace["logits"].reshape(-1, self.head.labels) for run in runs]
        now, before = (activate(logits) for logits in every)
        labels = [_union(*rows) for rows in zip(*(top_indices(x, k) for x in every), strict=True)]
        names = page_prediction.names_of(encoder, self.head, np.concatenate(labels))
        rows = [
            [[names[i], float(before[row, i]), float(now[row, i])] for i in own.tolist()]
            for row, own in enumerate(labels)
        ]
        return {"each": self.head.takes == "every", "chance": chance, "rows": rows}


def _terms(encoder: Encoder, batch: Mapping[str, Array]) -> dict[str, Any] | None:
    """Give each term's share by head, None where a head's scores do not differ; None of a model without nine terms."""
    try:
        shares = shares_of(encoder, terms_of(encoder, batch))
    except ValueError:
        return None
    told = shares.astype(object)
    told[~np.isfinite(shares)] = None
    return {"parts": PARTS, "shares": told.tolist()}


def _union(first: Array, second: Array) -> Array:
    return np.concatenate([first, second[~np.isin(second, first)]])


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
        raise ValueError(f"{what} must be a number, found {value!r:.40}")
    return float(value)
