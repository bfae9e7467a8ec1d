"""Small random models, on which answers are tried, with all intermediates of a text.

Their sizes are random too, and their eps is so large that its place in the formula shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
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


def _numbers(random: np.random.Generator, maps: dict[str, tuple[int, int]], norms: Sequence[str], dim: int) -> Numbers:
    found: Numbers = {}
    for name, (out, into) in maps.items():
        found[f"{name}.weight"] = random.standard_normal((out, into)) * 1.5 / np.sqrt(into)
        found[f"{name}.bias"] = random.standard_normal(out) * 0.3
    for name in norms:
        found[f"{name}.weight"] = 1 + random.standard_normal(dim) * 0.2
        found[f"{name}.bias"] = random.standard_normal(dim) * 0.2
    return found


def _bert_numbers(random: np.random.Generator, dim: int, width: int) -> Numbers:
    square, rows = (dim, dim), {"word": VOCAB, "position": LONGEST, "token_type": 2}
    maps, norms = {}, ["bert.embeddings.LayerNorm"]
    for at in (f"bert.encoder.layer.{i}" for i in range(DEPTH)):
        maps |= {f"{at}.attention.self.{name}": square for name in ("query", "key", "value")}
        maps |= {f"{at}.attention.output.dense": square}
        maps |= {f"{at}.intermediate.dense": (width, dim), f"{at}.output.dense": (dim, width)}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    head = "cls.predictions"
    found = _numbers(random, {**maps, f"{head}.transform.dense": square}, [*norms, f"{head}.transform.LayerNorm"], dim)
    for name, count in rows.items():
        found[f"bert.embeddings.{name}_embeddings.weight"] = random.standard_normal((count, dim))
    return {**found, f"{head}.bias": random.standard_normal(VOCAB)}


def _gpt2_numbers(random: np.random.Generator, dim: int, width: int) -> Numbers:
    maps, norms = {}, ["ln_f"]
    for at in (f"h.{i}" for i in range(DEPTH)):
        maps |= {f"{at}.attn.c_attn": (3 * dim, dim), f"{at}.attn.c_proj": (dim, dim)}
        maps |= {f"{at}.mlp.c_fc": (width, dim), f"{at}.mlp.c_proj": (dim, width)}
        norms += [f"{at}.ln_1", f"{at}.ln_2"]
    found = _numbers(random, maps, norms, dim)
    found |= {f"{name}.weight": found[f"{name}.weight"].T for name in maps}  # GPT-2's files hold them so
    return found | {
        "wte.weight": random.standard_normal((VOCAB, dim)),
        "wpe.weight": random.standard_normal((LONGEST, dim)),
    }


@lru_cache
def drawn(model_type: str, seed: int, plain_norms: bool = False) -> Way:
    """Draw a model and a text for it. `plain_norms`: every norm's weight is 1 and its bias 0."""
    from safetensors.numpy import save_file

    random, folder = np.random.default_rng(seed), temporary()
    heads, head_dim = int(random.integers(2, DEPTH + 1)), int(random.integers(3, 6))
    dim, width = heads * head_dim, heads * head_dim + 7
    numbers = {"bert": _bert_numbers, "gpt2": _gpt2_numbers}[model_type](random, dim, width)
    for name in numbers if plain_norms else ():
        if "LayerNorm" in name:
            numbers[name] = np.full(dim, float(name.endswith("weight")))
    save_file({name: np.ascontiguousarray(x, np.float32) for name, x in numbers.items()}, folder / "model.safetensors")
    _write_config(folder, model_type, dim, heads, width)
    ids = random.integers(0, VOCAB - 1, int(random.integers(6, 12)))
    return Way(minibert.load_encoder(folder), ids, {"bert": "masked_word", "gpt2": "next_word"}[model_type])


def _write_config(folder: Path, model_type: str, dim: int, heads: int, width: int) -> None:
    own = {
        "bert": {
            "architectures": ["BertForMaskedLM"], "hidden_size": dim, "num_attention_heads": heads,
            "num_hidden_layers": DEPTH, "intermediate_size": width, "max_position_embeddings": LONGEST,
            "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": EPS, "pad_token_id": None,
        },
        "gpt2": {
            "architectures": ["GPT2LMHeadModel"], "n_embd": dim, "n_head": heads, "n_layer": DEPTH, "n_inner": width,
            "n_positions": LONGEST, "activation_function": "gelu_new", "layer_norm_epsilon": EPS,
        },
    }  # fmt: skip
    config = {"model_type": model_type, "vocab_size": VOCAB, "tie_word_embeddings": True, **own[model_type]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
