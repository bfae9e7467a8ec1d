"""Small random models, on which answers are tried, with all intermediates of a text.

Their sizes are random too, and their eps is so large that its place in the formula shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import masked
import numpy as np
import training
from study import temporary

import minibert
from minibert.families.parts.plan import Step, value
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake, all_places, begin, with_mistake

EPS = 0.3
VOCAB, LONGEST, DEPTH = 19, 21, 3  # so each id is a valid position, and each head a valid block, if exchanged
Numbers = dict[str, np.ndarray]


class Way:
    """All intermediates of one text in a model: `values` has each of the plain steps by its name."""

    def __init__(self, encoder: minibert.Encoder, ids: np.ndarray, head: str) -> None:
        self.encoder, self.ids = encoder, ids
        self.places = list(all_places(encoder, encoder.head(head)))
        self.begun = begin({"input_ids": ids[None], "attention_mask": np.ones((1, len(ids)), int)})
        self.plan = {key: step for at in self.places for key, step in at.plan.items()}
        self.values = dict(self.begun)
        for key in self.plan:
            value(key, self.plan, self.values)

    def __getitem__(self, key: str) -> np.ndarray:
        return self.values[key][0]

    def wrong(self, key: str, of: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
        """Compute each mistake of the list: its name, the reason, and its value of `key`, computed from `of`.

        A mistake is made first everywhere, then only at one place of each block.
        """
        for mistake, changed in self._made:
            yield from self._with(mistake.name, mistake.why, changed, key, of)
        for mistake, changed in self._made:
            alike = [re.sub(r"\.\d+\.", ".*.", name) for name in changed]
            for where in dict.fromkeys(alike) if len(set(alike)) > 1 else ():
                one = {name: step for each, (name, step) in zip(alike, changed.items(), strict=True) if each == where}
                yield from self._with(f"{mistake.name}, at {where}", mistake.why, one, key, of)

    @cached_property
    def _made(self) -> list[tuple[Mistake, dict[str, Step]]]:
        return [(each, self._changed(each)) for each in MISTAKES if not each.rounding]

    def _changed(self, mistake: Mistake) -> dict[str, Step]:
        plans = [with_mistake(mistake, at) or at.plan for at in self.places]
        return {name: step for plan in plans for name, step in plan.items() if step is not self.plan.get(name)}

    def _with(self, name: str, why: str, changed: dict[str, Step], key: str, of: Sequence[str]) -> Iterator[Any]:
        values = self.begun | {given: self.values[given] for given in of}
        try:
            with np.errstate(all="ignore"):
                yield name, why, value(key, self.plan | changed, values)[0]
        except (IndexError, KeyError, ValueError, RecursionError):  # an id past the table, or another shape
            return


def _numbers(random: np.random.Generator, tensors: Numbers) -> Numbers:
    """Draw all numbers of a model anew: rows of tables, maps, the weights of norms around 1, and biases."""
    found: Numbers = {}
    for name, x in tensors.items():
        drawn = random.standard_normal(x.shape)
        if x.ndim == 1:
            found[name] = 1 + 0.2 * drawn if name.endswith("weight") else 0.3 * drawn
        else:
            table = "embeddings" in name or name in ("wte.weight", "wpe.weight")
            into = x.shape[0 if name.startswith("h.") else 1]  # GPT-2's files hold maps transposed
            found[name] = drawn if table else drawn * 1.5 / np.sqrt(into)
    return found


@lru_cache
def drawn(model_type: str, seed: int, plain_norms: bool = False) -> Way:
    """Draw a model and a text for it. `plain_norms`: every norm's weight is 1 and its bias 0."""
    from safetensors.numpy import save_file

    random, folder = np.random.default_rng(seed), temporary()
    heads, head_dim = int(random.integers(2, DEPTH + 1)), int(random.integers(3, 6))
    dim = heads * head_dim
    if model_type == "bert":
        tensors, head = masked.tensors_of(masked.random_weights(0, VOCAB, LONGEST, dim, DEPTH)), "masked_word"
        sizes = {"hidden_size": dim, "num_attention_heads": heads, "intermediate_size": 4 * dim}
        own = {"num_hidden_layers": DEPTH, "max_position_embeddings": LONGEST, "layer_norm_eps": EPS}
        config = masked.CONFIG | sizes | own | {"hidden_act": "gelu", "pad_token_id": None}
    else:
        tensors = training.tensors_of(training.random_model(0, training.Sizes(VOCAB, LONGEST, dim, DEPTH)))
        sizes, head = {"n_embd": dim, "n_head": heads, "n_layer": DEPTH, "n_positions": LONGEST}, "next_word"
        config = training.CONFIG | sizes | {"layer_norm_epsilon": EPS}
    numbers = _numbers(random, tensors)
    for name in numbers if plain_norms else ():
        if "LayerNorm" in name:
            numbers[name] = np.full(dim, float(name.endswith("weight")))
    save_file({name: np.ascontiguousarray(x, np.float32) for name, x in numbers.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": VOCAB}), encoding="utf-8")
    ids = random.integers(0, VOCAB - 1, int(random.integers(6, 12)))
    return Way(minibert.load_encoder(folder), ids, head)
