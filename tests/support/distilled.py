"""Tiny encoders with the tokenizer of a class, to make static models of."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import encoders
import numpy as np
import word_models
from tokenizer_folders import BASES, vocabulary

import minibert
from minibert.equations.input_layer import Array

# model_type -> its tokenizer's class: WordPiece, BPE of bytes, BPE with a fallback, Unigram; the last has no class
KINDS = {
    "bert": "BertTokenizer", "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer", "llama": "LlamaTokenizer", "gemma3_text": "GemmaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer", "albert": "AlbertTokenizer",
    "modernbert": "PreTrainedTokenizerFast",
}  # fmt: skip


def write(folder: Path, kind: str) -> Path:
    """A model folder of this type, a row for each token of its tokenizer."""
    config = encoders.config(kind, vocab_size=len(vocabulary(BASES[KINDS[kind]])))
    checkpoints.write(folder, config, encoders.tensors(config))
    return word_models.tokenizer(folder, KINDS[kind], config)


def rows_by_hand(encoder: minibert.Encoder, ids: list[int], dims: int) -> Array:
    """Compute the rows before rounding, token by token, by the textbook: float64."""
    before, after = ([encoder.tokenize("a")["input_ids"][0].tolist()[i]] for i in (0, -1))
    x = np.array([encoder([[*before, i, *after]])[0].astype(np.float64).mean(axis=0) for i in ids])
    x -= x.mean(axis=0)
    _, _, directions = np.linalg.svd(x, full_matrices=False)
    y = x @ directions[:dims].T
    y *= np.sign(y[np.abs(y).argmax(axis=0), np.arange(dims)])
    p = 1 / np.arange(2, len(ids) + 2)
    return y * (1e-4 / (1e-4 + p / p.sum()))[:, None]
