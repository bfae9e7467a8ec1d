"""Reads generation_config.json for a text that is written on: a setting that changes the words is done or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.files.reading import read_object
from minibert.files.tokenizer_files import Find

FILE = "generation_config.json"
# what else of transformers' `generate` changes which words come -> the value besides null that changes nothing
REFUSED: Mapping[str, Any] = {
    "num_beams": 1, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "suppress_tokens": [],
    "begin_suppress_tokens": [], "bad_words_ids": None, "sequence_bias": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1, "watermarking_config": None, "penalty_alpha": 0,
    "dola_layers": None, "constraints": None, "force_words_ids": None, "token_healing": False, "max_time": None,
    "stop_strings": None, "num_return_sequences": 1, "use_mtp": False, "assistant_early_exit": None,
    "is_assistant": False,
}  # fmt: skip


class Generation(NamedTuple):
    """Settings that hold for each word that is written.

    ends    ids that end a text
    repetition_penalty  see `penalized`
    """

    ends: frozenset[int] = frozenset()
    repetition_penalty: float = 1.0


def read_generation(find: Find, config: Mapping[str, Any], where: str) -> Generation:
    """Read generation_config.json; without that file what config.json itself says, and no default of a class.

    Raises CheckpointError that names the entry.
    """
    path = find(FILE)
    settings = config if path is None else read_object(path)

    def refused(what: str) -> CheckpointError:
        return CheckpointError(f"{where}: {'config.json' if path is None else FILE}: {what}")

    for key, neutral in REFUSED.items():
        if settings.get(key) not in (None, neutral):
            raise refused(
                f"{key!r} is {settings[key]!r:.40}, which changes the words that come and is not computed here; take "
                "it out to write on without it"
            )
    ends, penalty = settings.get("eos_token_id"), settings.get("repetition_penalty")
    listed = ends if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    if not all(type(end) is int for end in listed):
        raise refused(f"'eos_token_id' must be an integer, a list of them or null, found {ends!r:.80}")
    penalty = 1.0 if penalty is None else penalty
    if type(penalty) not in (int, float) or not 0 < penalty < np.inf:
        raise refused(f"'repetition_penalty' must be a number > 0, found {penalty!r:.40}")
    return Generation(frozenset(listed), float(penalty))


def penalized(logits: Array, ids: list[int], penalty: float) -> Array:
    """Make words that were there before less likely: `x / penalty` where x is positive, else `x * penalty`.

    Source: Keskar et al. 2019, "CTRL" (arXiv:1909.05858), section 4.1.

    >>> penalized(np.array([1.0, 1.0, -1.0, -1.0]), [1, 2, 1], 2.0)
    array([ 1. ,  0.5, -2. , -1. ])
    """
    y = logits.copy()
    before = logits[ids]
    y[ids] = np.where(before < 0, before * logits.dtype.type(penalty), before / logits.dtype.type(penalty))
    return y
