"""Compares the blocks of two sides: tokens that are not padding, tolerances, and the block of each intermediate."""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array
from minibert.models.encoder import Encoder

from .compare import Difference, Traces, compare, fits, tolerances

# |difference| / max(1, |value|) in the blocks. Measured against torch on nine seeded models: 6.7e-6, attentions 1.1e-6
# (1.8e-6 where probabilities are near 0 and 1); on all-MiniLM-L6-v2 6.7e-5 and 4.5e-6: there the rms errors decide.
TOLERANCE = 1e-5
ATTENTION_TOLERANCE = 1e-6
# The root mean square error against float64 as a share of the other side's. Ours of torch's on all-MiniLM-L6-v2: 1.10
# at most with BLAS's Haswell kernel, 1.43 with the one for AVX-512, 1.48 with Sandybridge (single products; what leaves
# a block 1.26). Of a port's, of ours: 5.0 where it adds each product's terms one after the other, as plain loops do.
ERROR_SHARE, PORT_SHARE = 2.0, 10.0
Shares = tuple[float, float]  # of theirs that our error may be, and of ours theirs
SHARES: dict[str, Shares] = {
    "reference": (ERROR_SHARE, np.inf),  # both are compared with the reference's own float64
    "file": (np.inf, PORT_SHARE),  # a port may be better than we are
    "stored": (ERROR_SHARE, PORT_SHARE),  # compared with our float64, which a wrong formula would make wrong too
}
INPUT_LAYER, END = "input layer", "after the blocks"


def at_tokens(x: Array, mask: Array, causal: bool, scores: bool) -> Array:
    """Leave out padding: its rows, its rows of probabilities, and the scores of pairs that no token sees.

    x (batch, seq, ...) or (1, seq, ...) or (seq,) -> (tokens, ...); x (batch, heads, query, key) -> (tokens, heads,
    key), of scores (pairs, heads). mask (batch, seq), bool.
    """
    if x.ndim != 4:
        full: Array = np.broadcast_to(x, (*mask.shape, *x.shape[2:]))
        return full[mask]
    if not scores:
        return np.asarray(x.swapaxes(1, 2)[mask])
    pairs = mask[:, :, None] & mask[:, None, :]
    if causal:
        pairs &= np.tri(mask.shape[1], dtype=bool)
    return np.asarray(np.moveaxis(x, 1, -1)[pairs])


def in_order(traces: Traces) -> list[str]:
    """List the names in all kinds of batch in the order of computation, also those that only some kinds have.

    >>> in_order({"plain": {"a": 0, "c": 0}, "types": {"a": 0, "b": 0, "c": 0}})
    ['a', 'b', 'c']
    """
    order: list[str] = []
    for named in traces.values():
        place = 0
        for key in named:
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return order


class Comparison:
    """Compares two sides: only tokens that are not padding, the tolerances, and each intermediate's block."""

    def __init__(self, encoder: Encoder, inputs: Traces, theirs: Traces, truth: Traces, shares: Shares) -> None:
        self.inputs, self.theirs, self.truth, self.shares = inputs, theirs, truth, shares
        self.causal, self.scores = encoder.stack.causal, {block.attention.scores for block in encoder.stack.blocks}
        self.layer_tolerances = {**tolerances(encoder.embeddings), "input_ids": 0.0}
        last = f"hidden_states.{len(encoder.stack.blocks)}"
        self.places = {"hidden_states.0": INPUT_LAYER, encoder.stack.last_norm: END}
        for i, block in enumerate(encoder.stack.blocks):
            self.places |= dict.fromkeys([*block.keys, f"hidden_states.{i + 1}"], f"block {i}")
        if encoder.stack.last_norm:
            self.places[last] = END

    def place(self, key: str) -> str:
        """Where an intermediate is computed: "block 3", or before or after the blocks."""
        return self.places.get(key, INPUT_LAYER)

    def differences(self, ours: Traces, truth: Traces | None = None) -> list[Difference]:
        """Compare the tokens of every intermediate that both sides have."""
        here, there, true = Traces(), Traces(), Traces()
        allowed = dict(self.layer_tolerances)
        for kind, mine in ours.items():
            shape = mine["hidden_states.0"].shape[:2]
            mask = np.asarray(self.inputs[kind].get("attention_mask", np.ones(shape))).reshape(shape) != 0
            sides = (mine, self.theirs.get(kind, {}), (self.truth if truth is None else truth).get(kind, {}))
            for key in mine:
                if self.place(key) != INPUT_LAYER:
                    allowed[key] = ATTENTION_TOLERANCE if key.startswith("attentions.") else TOLERANCE
                for side, kept in zip(sides, (here, there, true), strict=True):
                    if key in side:
                        alike = fits(mine[key], side[key])  # if not, nothing is left out: another shape is a difference
                        x = at_tokens(side[key], mask, self.causal, key in self.scores) if alike else side[key]
                        kept.setdefault(kind, {})[key] = x
        return compare(here, there, true, allowed)

    def accepts(self, difference: Difference) -> bool:
        """Whether one intermediate, over all batches, is within the tolerance or no worse than the other side."""
        if difference.passes or self.place(difference.key) == INPUT_LAYER:
            return difference.passes
        errors = difference.error_ours, difference.error_theirs
        return all(
            not np.isfinite(share) or error <= share * other  # infinity times an error of 0 would be NaN
            for share, error, other in zip(self.shares, errors, errors[::-1], strict=True)
        )
