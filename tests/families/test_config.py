"""A config's words: null, true and false, and what a pickled one keeps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from minibert import CheckpointError
from minibert.families.config import Config
from minibert.files.tables import narrowed, widen


def test_a_value_under_one_name_goes_before_null_under_another() -> None:
    config = Config({"hidden_size": None, "n_embd": 8}, aliases={"hidden_size": "n_embd"})
    assert config["hidden_size"] == config["n_embd"] == 8


def test_true_is_no_size() -> None:
    with pytest.raises(CheckpointError, match="'vocab_size' must be an integer >= 0, found True"):
        Config({"vocab_size": True}).integer("vocab_size")


def test_a_pickled_config_keeps_its_defaults() -> None:
    again = pickle.loads(pickle.dumps(Config({"a": 1}, {"b": "a"}, {"eps": 1e-5}, "there")))
    assert (again.b, again.eps, len(again)) == (1, 1e-5, 1)


def test_infinity_and_every_nan_stay_what_they_are() -> None:
    infinite = np.array([0x7C00, 0xFC00], np.uint16).view(np.float16)
    assert widen(infinite, "F16", np.dtype("f4")).tolist() == [np.inf, -np.inf]
    signalling = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(widen(narrowed(signalling, "BF16"), "BF16", np.dtype("f4"))).all()
