"""Tiny encoders with the tokenizer of a class, to make static models of."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import encoders
import word_models
from tokenizer_folders import BASES, vocabulary

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
