"""generation_config.json beside a model: where a text ends, words that were there before, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
import word_models
from safetensors.numpy import load_file
from textbook import gpt2_weights

import minibert
from minibert import CheckpointError
from minibert.equations.whole_models import gpt2_model
from minibert.models.heads.generation import FILE, REFUSED
from minibert.models.heads.prediction import choose

TEXT = "the he"


def opened(folder: Path, settings: dict[str, Any] | None, **config: Any) -> minibert.Encoder:
    """GPT-2 with this generation_config.json, None for no such file, and these settings in config.json."""
    word_models.write(folder, "gpt2", **config)
    (folder / FILE).unlink(missing_ok=True)
    if settings is not None:
        (folder / FILE).write_text(json.dumps(settings), encoding="utf-8")
    return minibert.load_encoder(folder)


def test_which_file_says_where_a_text_ends(tmp_path: Path) -> None:
    """generation_config.json alone where it is there, else config.json alone: no default of a class."""
    (first,) = opened(tmp_path, None).next_words(TEXT, k=1)
    end = first["token"]
    for settings, config in (({"eos_token_id": end}, None), ({"eos_token_id": [3, end]}, 3), (None, [3, end])):
        assert opened(tmp_path, settings, eos_token_id=config).complete(TEXT, 1) == TEXT
    for settings, config in (({}, end), ({"eos_token_id": None}, end), ({"eos_token_id": 3}, [end]), (None, None)):
        assert opened(tmp_path, settings, eos_token_id=config).complete(TEXT, 1) == TEXT + first["token_str"]


def test_words_that_were_there_are_less_likely(tmp_path: Path) -> None:
    """Each word's logits are those of a whole run of the textbook; the temperature comes after the penalty."""
    penalty = 1.7
    plain = opened(tmp_path / "plain", {"repetition_penalty": 1.0})
    encoder = opened(tmp_path / "model", {"repetition_penalty": penalty, "do_sample": True})
    weights = gpt2_weights(load_file(tmp_path / "model" / "model.safetensors"))
    for text in ("we", "the he", "we we"):
        for temperature in (0.0, 2.0):
            ids, chance = encoder.tokenize(text)["input_ids"][0].tolist(), np.random.default_rng(3)
            for _ in range(4):
                logits = gpt2_model(np.array([ids]), np.ones((1, len(ids)), int), weights, encoders.HEADS)[0, -1]
                for word in set(ids):
                    logits[word] *= penalty if logits[word] < 0 else 1 / penalty
                ids = [*ids, choose(logits, temperature, chance)]
            want = encoder.embeddings.tokenizer.decode(ids, skip_special_tokens=True)
            assert encoder.complete(text, 4, temperature, seed=3) == want
    assert encoder.complete(TEXT, 8) != plain.complete(TEXT, 8)


def test_what_changes_no_word_passes(tmp_path: Path) -> None:
    want = opened(tmp_path, {}).complete(TEXT, 9)
    usual = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "max_length": 2, "max_new_tokens": 1}
    neutral = {key: value for key, value in REFUSED.items() if value is not None}
    for settings in (usual, neutral, dict.fromkeys(REFUSED), {"no_such_key": 3, "repetition_penalty": None}):
        assert opened(tmp_path, settings).complete(TEXT, 9) == want


@pytest.mark.parametrize("key", REFUSED)
def test_what_changes_the_words_and_is_not_computed_is_refused(tmp_path: Path, key: str) -> None:
    encoder = opened(tmp_path, {key: [[2]]})
    with pytest.raises(CheckpointError, match=rf"{FILE}: '{key}' is \[\[2\]\], which changes the words that come"):
        encoder.complete(TEXT)
    assert encoder.next_words(TEXT)
    with pytest.raises(CheckpointError, match=rf"config.json: '{key}' is 7, "):
        opened(tmp_path, None, **{key: 7}).complete(TEXT)


END, PENALTY = "'eos_token_id' must be an integer, a list of", "'repetition_penalty' must be a number > 0, found"
ODD: list[tuple[dict[str, Any], str]] = [
    *(({"eos_token_id": end}, END) for end in (5.5, "e", True, [1, [2]], {"a": 1})),
    *(({"repetition_penalty": penalty}, PENALTY) for penalty in (0, -1.5, "1", True, [1.0], 1e999)),
]


@pytest.mark.parametrize(("settings", "says"), ODD)
@pytest.mark.parametrize("own", [False, True])
def test_a_setting_that_is_none(tmp_path: Path, settings: dict[str, Any], says: str, own: bool) -> None:
    encoder = opened(tmp_path, settings) if own else opened(tmp_path, None, **settings)
    with pytest.raises(CheckpointError, match=f"{FILE if own else 'config.json'}: {says}"):
        encoder.complete("we")


def test_a_temperature_of_any_type_of_numpy_is_taken_without_a_warning(tmp_path: Path) -> None:
    """Compared with the largest float64 in its own type, one of float32 would warn of an overflow."""
    encoder = opened(tmp_path, {})
    for kind in (np.float16, np.float32, np.int8):
        assert encoder.complete(TEXT, 4, temperature=kind(2)) == encoder.complete(TEXT, 4, temperature=2.0)
    for wrong in (np.float32(np.inf), np.complex64(1)):
        with pytest.raises(ValueError, match="temperature must be a number >= 0"):
            encoder.complete(TEXT, 4, temperature=wrong)  # type: ignore[arg-type]
