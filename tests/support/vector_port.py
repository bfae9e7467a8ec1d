"""From texts to vectors once more, as somebody ports a sentence model who has never seen this package.

The tokenizers library splits, `loops.Port` computes the blocks, and pooling is written out. `wrong` names mistakes, as
many as are wanted, each made where people make it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import loops
import numpy as np

Array = np.ndarray[Any, Any]
LONGEST = 14  # tokens, where the position table has more
PROMPT = "clouds "
IN_BLOCKS = {"activation gelu_new": "activation gelu_new", "causal": "causal mask where there is none"}
REQUEST = 8  # texts that are padded together


def write(folder: Path, pooling: str = "mean", kind: str = "bert") -> Path:
    """A seeded BERT, or another kind, with tokenizer, pooling, normalization, a default prompt and a longest length."""
    encoders.write(folder, kind)
    checkpoints.write_wordpiece(folder)
    names = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": name, "path": path, "type": f"sentence_transformers.models.{type_}"}
        for i, (name, path, type_) in enumerate(names)
    ]
    (folder / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": encoders.DIM, "pooling_mode": pooling},
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": PROMPT}, "default_prompt_name": "query"},
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


class VectorPort:
    """One folder of `write`; called with texts it gives their vectors."""

    def __init__(self, folder: Path, *wrong: str, dtype: type = np.float32) -> None:
        from tokenizers import Tokenizer, normalizers

        self.wrong = set(wrong)
        inside = [IN_BLOCKS[name] for name in wrong if name in IN_BLOCKS]
        self.port = loops.Port(folder, inside[0] if inside else "", dtype)
        self.depth = self.port.config["num_hidden_layers"] - ("last block missing" in self.wrong)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = {"lowercase": "case kept" not in self.wrong, "strip_accents": "accents kept" not in self.wrong}
        self.tokenizer.normalizer = normalizers.BertNormalizer(**settings)

    def __call__(self, texts: Sequence[str]) -> Array:
        counts = [len(self.ids(text)) for text in texts]
        requests = [counts[i - i % REQUEST :][:REQUEST] for i in range(len(texts))]
        longest = [max(counts) for counts in requests]
        made = np.stack([self.vector(text, most) for text, most in zip(texts, longest, strict=True)])
        if "vectors not normalized" not in self.wrong:
            made = made / np.sqrt((made * made).sum(1, keepdims=True))
        if "truncated to 6" in self.wrong:
            made = made[:, :6]
        return np.asarray(made, np.float32)

    def ids(self, text: str) -> list[int]:
        prompts = {"prompt missing": "", "prompt doubled": 2 * PROMPT}
        prompt = next((text for name, text in prompts.items() if name in self.wrong), PROMPT)
        ids = list(self.tokenizer.encode(prompt + text).ids)
        longest = LONGEST
        if len(ids) > longest:
            at_the_end = [*ids[: longest - 1], ids[-1]]
            others = {"beginning cut": [ids[0], *ids[1 - longest :]], "ids cut": ids[:longest]}
            ids = next((others[name] for name in others if name in self.wrong), at_the_end)
        if "no [CLS]" in self.wrong:
            ids = ids[1:]
        return ids[:-1] if "no [SEP]" in self.wrong else ids

    def vector(self, text: str, longest: int) -> Array:
        ids = self.ids(text)
        count, pads = len(ids), longest - len(ids) if {"padding pooled", "padding seen"} & self.wrong else 0
        batch = {"input_ids": np.array([ids + [0] * pads])}
        if pads and "padding seen" not in self.wrong:
            batch["attention_mask"] = (batch["input_ids"] != 0).astype(np.int64)
        start = 1 if "positions from 1" in self.wrong else 0
        batch["position_ids"] = np.arange(start, start + count + pads)[None]
        if "types of 1" in self.wrong:
            batch["token_type_ids"] = np.ones_like(batch["input_ids"])
        made = self.port.run(batch)
        rows = made[f"hidden_states.{self.depth}"][0]
        if "padding pooled" not in self.wrong:
            rows = rows[:count]
        if "special tokens not pooled" in self.wrong:
            rows = rows[1:-1]
        if "[CLS] not pooled" in self.wrong:
            rows = rows[1:]
        if "first token" in self.wrong:
            return rows[0]
        if "largest" in self.wrong:
            return rows.max(0)
        if "last token" in self.wrong:
            return rows[-1]
        weights = np.arange(1, len(rows) + 1) if "weighted" in self.wrong else np.ones(len(rows))
        return (rows * weights[:, None].astype(rows.dtype)).sum(0) / rows.dtype.type(weights.sum())
