"""CLIP's vectors of texts beside transformers' `text_embeds`, in one padded batch there, here packed and one by one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert

pytestmark = pytest.mark.reference

ROWS = 1e-5  # measured 2.3e-6
TEXTS = [
    "a cat", "a photo of a dog that sleeps", "x", "naive", "", "one <|endoftext|> two", "word " * 30, "What?", "b c d",
    "the end",
]  # fmt: skip


def tokenizer(folder: Path, longest: int) -> Any:
    """CLIP's own, of bytes alone, whose two special tokens come last."""
    alphabet = sorted(importlib.import_module("tokenizers").pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(letter + "</w>" for letter in alphabet), "<|startoftext|>", "<|endoftext|>"]
    made = importlib.import_module("transformers").CLIPTokenizer({word: i for i, word in enumerate(words)}, [])
    made.model_max_length = longest
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("end", [513, 2])
def test_text_embeds(end: int, tmp_path: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    folder = encoders.write(tmp_path, "clip_text_model", vocab_size=514, eos_token_id=end)
    (folder / "vocab.txt").unlink()
    model = transformers.CLIPTextModelWithProjection.from_pretrained(folder).eval()
    batch = tokenizer(folder, encoders.LONGEST)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad(), minibert.load_encoder(folder) as encoder:
        theirs = model(**batch).text_embeds.numpy()
        assert off(encoder.encode(TEXTS), theirs) <= ROWS
        assert off(np.stack([encoder.encode(text) for text in TEXTS]), theirs) <= ROWS
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == end
