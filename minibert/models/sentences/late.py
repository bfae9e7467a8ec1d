"""Late interaction: a vector for each token of a text, as sentence-transformers' MultiVectorEncoder gives them.

A query may be filled up with mask tokens, whose vectors count as those of its own tokens do; of a document some tokens,
such as punctuation, may be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import finite

TASKS = ("query", "document")
USUAL = TASKS[1]  # what a text without a task counts as


class Expansion(NamedTuple):
    """The tokens that fill a query up."""

    length: int  # up to so many tokens
    attend: bool  # whether other tokens see those that fill up
    token: str | None = None  # None: the mask token


class LateInteraction(NamedTuple):
    """Makes vectors of a text's tokens after the last block."""

    steps: tuple[tuple[Callable[[Array], Array], tuple[str, ...]], ...] = ()  # each with the tasks that it is for
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()  # tokens that are left out
    skips: tuple[str, ...] = (USUAL,)  # in texts of these tasks
    prefixes: tuple[str, ...] = ()  # of prompts, one token each where the vocabulary has it

    def filling(self, tokenizer: Tokenizer, task: str | None) -> Callable[[Sequence[Encoded]], list[Encoded]]:
        """Give what fills up texts of this task.

        Raises ValueError where the tokenizer has no such token, or puts padding before a text.
        """
        own = self.expansion
        if own is None or task != TASKS[0]:
            return list
        if tokenizer.pads_left:
            raise ValueError(
                "queries of this model are filled up before a text, where its padding_side is left: in "
                "tokenizer_config.json, or by its tokenizer_class; that is not computed here. encode_document works"
            )
        named = tokenizer.named
        token = own.token or named.get("mask") or named.get("eos")
        i = None if token is None else tokenizer.id_of(token)
        if i is None:
            raise ValueError(
                f"queries of this model are filled up with {token or 'a mask token'!r}, which the tokenizer does not "
                "have; is this the right tokenizer?"
            )

        def fill(encoded: Sequence[Encoded]) -> list[Encoded]:
            found = []
            for each in encoded:
                missing = max(0, own.length - len(each.input_ids))
                types = each.token_type_ids and each.token_type_ids + [0] * missing
                ids, unseen = each.input_ids + [i] * missing, 0 if own.attend else missing
                found.append(each._replace(input_ids=ids, token_type_ids=types, unseen=unseen))
            return found

        return fill

    def results(
        self, tokenizer: Tokenizer, task: str | None, normalize: bool
    ) -> Callable[[Packed, Array], list[Array]]:
        """Make the `results` of a pipeline: for each text the vectors of its tokens that count, (tokens, dim)."""
        steps = [step for step, tasks in self.steps if (task or USUAL) in tasks] + [normalized] * normalize + [finite]
        words = self.skipped if (task or USUAL) in self.skips else ()
        skipped = [i for word in words if (i := tokenizer.id_of(word)) is not None]

        def results(tile: Packed, x: Array) -> list[Array]:
            ids = tile.ids
            for step in steps:
                x = step(x)
            kept = ~np.isin(ids, skipped)
            groups = ((group.of(x), group.of(kept)) for group in tile.groups())
            return [rows[some] for each in groups for rows, some in zip(*each, strict=True)]

        return results
