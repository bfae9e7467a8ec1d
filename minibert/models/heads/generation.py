"""Reads generation_config.json for a text that is written on: a setting that changes the words is done or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert.errors import CheckpointError
from minibert.files.reading import read_object
from minibert.files.tokenizer_files import Find

FILE = "generation_config.json"
# what else of transformers' `generate` changes which words come -> the value besides null that changes nothing
REFUSED: Mapping[str, Any] = {
    "num_beams": 1, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0, "suppress_tokens": [],
    "begin_suppress_tokens": [], "bad_words_ids": None, "sequence_bias": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "exponential_decay_length_penalty": None, "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1, "watermarking_config": None, "penalty_alpha": 0,
    "dola_layers": None, "constraints": None, "force_words_ids": None, "token_healing": False, "max_time": None,
    "stop_strings": None, "num_return_sequences": 1, "use_mtp": False, "assistant_early_exit": None,
    "is_assistant": False,
}  # fmt: skip


def read_generation(find: Find, config: Mapping[str, Any], where: str) -> frozenset[int]:
    """Give the ids that end a text: generation_config.json's, without that file config.json's, no default of a class.

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
    ends = settings.get("eos_token_id")
    listed = ends if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    if not all(type(end) is int for end in listed):
        raise refused(f"'eos_token_id' must be an integer, a list of them or null, found {ends!r:.80}")
    return frozenset(listed)
