"""Reads tests/reference/encoder: one `EncoderCase` for each tiny whole model that the reference has written and run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import change_json
from reference_files import REFERENCE, Stored
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array

ENCODERS = REFERENCE / "encoder"


class EncoderCase(Stored):
    root = ENCODERS

    def load(self, **changes: Any) -> minibert.Encoder:
        return minibert.load_encoder(self.folder, **changes)


ALL_CASES = tuple(EncoderCase(path.parent.name) for path in sorted(ENCODERS.glob("*/case.json")))
CASE = {case.name: case for case in ALL_CASES}
TINY = tuple(case for case in ALL_CASES if case.name != "minilm")  # those with weights of their own


def copied(case: EncoderCase, folder: Path, change: Any = None, **config: Any) -> Path:
    """A copy of a case's folder, with tensors and config changed."""
    shutil.copytree(case.folder, folder, dirs_exist_ok=True)
    if change:
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "text_config" in data:  # of CLIP's whole model
        config = {"text_config": {**data["text_config"], **config}}
    change_json(folder / "config.json", **config)
    return folder


def off(ours: Array, theirs: Array) -> float:
    """The largest difference relative to max(1, |theirs|)."""
    assert ours.shape == theirs.shape
    return float(np.max(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs)), initial=0))


def kept(inputs: dict[str, Array]) -> Array:
    """Return a mask of the tokens that are not padding."""
    return inputs.get("attention_mask", np.ones_like(inputs["input_ids"])) != 0
