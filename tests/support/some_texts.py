"""Texts that try a tokenizer, and small helpers of its tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from checkpoints import GPT2, write_hollow
from hypothesis import strategies as st

from minibert import EmbeddingLayer

HOSTILE = [
    "",
    " ",
    "\n\t\r\x0b\x0c\x1c\x85\u2028",
    "\x00",
    "a\x00b",
    "\ufeffbom",
    "e\u0301 \u00e9 \ufb01 \u1e9b\u0323",
    "\u202eright to left\u202c \u200d \u200b",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1f9\U0001f1f7 \U0001f44d\U0001f3fd",
    "\u4e2d\u6587 \u30ab\u30bf \ud55c\uae00 \u0e44\u0e17\u0e22 \u0627\u0644",
    "\uffff\ufffe\ufffd\ue000\U0010ffff",
    "[SEP] [CLS] [MASK] [PAD] [UNK] [unused5] ##ing",
    "<s></s><mask><|endoftext|>",
    "x" * 300,
    "a." * 100,
    "\u0300" * 200,
    "1" * 150 + " 3.14e-10 -- ...",
]

# any character that is one: surrogates are refused, and a test of its own says so
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def real_gpt2_folder(reference_folder: Path, folder: Path) -> Path:
    """A tiny layer with GPT-2's real vocabulary: the ids need no table of this size."""
    config = {**GPT2, "vocab_size": 50257, "n_embd": 1, "n_positions": 64}
    write_hollow(folder, config, {"wte.weight": (50257, 1), "wpe.weight": (64, 1)})
    shutil.copy(reference_folder / "tokenizers" / "gpt2_vocab.json", folder / "vocab.json")
    shutil.copy(reference_folder / "tokenizers" / "gpt2_merges.txt", folder / "merges.txt")
    return folder


def ids_of(layer: EmbeddingLayer, *texts: Any, **keywords: Any) -> list[list[int]]:
    return layer.tokenize(*texts, **keywords)["input_ids"].tolist()


def as_it_stands(folder: Path) -> None:
    """Let tokenizer.json be read whole; else the class of the model's type has rules of its own."""
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
