"""From texts to vectors once more, as somebody ports a sentence model who has never seen this package.

The tokenizers library splits, `loops.Port` computes the blocks, and pooling is written out. `wrong` names mistakes, as
many as are wanted, each made where people make it; the names are those that verify should find.
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
IN_BLOCKS = ("activation gelu_new", "causal mask where there is none")
REQUEST = 8  # texts that are padded together


def write(folder: Path, kind: str = "bert") -> Path:
    """A seeded BERT, or another kind, with tokenizer, pooling, normalization, a default prompt and a longest length."""
    encoders.write(folder, kind)
    checkpoints.write_wordpiece(folder)
    modules = [
        {"idx": i, "name": f"{i}", "path": path, "type": f"sentence_transformers.models.{path[2:] or 'Transformer'}"}
        for i, path in enumerate(("", "1_Pooling", "2_Normalize"))
    ]
    (folder / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": encoders.DIM, "pooling_mode": "mean"},
        "sentence_bert_config.json": {"max_seq_length": LONGEST, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": PROMPT}, "default_prompt_name": "query"},
    }.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


class VectorPort:
    """One folder of `write`; called with texts it gives their vectors."""

    def __init__(self, folder: Path, *wrong: str) -> None:
        from tokenizers import Tokenizer, normalizers

        self.wrong = set(wrong)
        self.port = loops.Port(folder, next((name for name in IN_BLOCKS if name in wrong), ""))
        self.depth = self.port.config["num_hidden_layers"] - ("last block missing" in wrong)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase="case kept" not in wrong, strip_accents="accents kept" not in wrong
        )

    def __call__(self, texts: Sequence[str]) -> Array:
        counts = [len(self.ids(text)) for text in texts]
        longest = [max(counts[i - i % REQUEST :][:REQUEST]) for i in range(len(texts))]
        made = np.stack([self.vector(text, most) for text, most in zip(texts, longest, strict=True)])
        if "vectors not normalized" not in self.wrong:
            made = made / np.sqrt((made * made).sum(1, keepdims=True))
        return np.asarray(made[:, :6] if "truncated to the first 6 numbers" in self.wrong else made, np.float32)

    def ids(self, text: str) -> list[int]:
        prompts = {"prompt missing": "", "prompt doubled": 2 * PROMPT}
        prompt = next((text for name, text in prompts.items() if name in self.wrong), PROMPT)
        ids = list(self.tokenizer.encode(prompt + text).ids)
        if len(ids) > LONGEST:
            at_the_end = [*ids[: LONGEST - 1], ids[-1]]
            others = {"truncated at the beginning": [ids[0], *ids[1 - LONGEST :]],
                      "special tokens truncated": ids[:LONGEST]}  # fmt: skip
            ids = next((others[name] for name in others if name in self.wrong), at_the_end)
        first = 1 if "first special token left out" in self.wrong else 0
        return ids[first:-1] if "last special token left out" in self.wrong else ids[first:]

    def vector(self, text: str, longest: int) -> Array:
        ids = self.ids(text)
        count, pads = len(ids), longest - len(ids) if {"padding pooled", "padding seen"} & self.wrong else 0
        batch = {"input_ids": np.array([ids + [0] * pads])}
        if pads and "padding seen" not in self.wrong:
            batch["attention_mask"] = (batch["input_ids"] != 0).astype(np.int64)
        start = 1 if "positions from 1" in self.wrong else 0
        batch["position_ids"] = np.arange(start, start + count + pads)[None]
        if "type 1 for all tokens" in self.wrong:
            batch["token_type_ids"] = np.ones_like(batch["input_ids"])
        rows = self.port.run(batch)[f"hidden_states.{self.depth}"][0]
        if "padding pooled" not in self.wrong:
            rows = rows[:count]
        if "special tokens left out of pooling" in self.wrong:
            rows = rows[1:-1]
        if "first special token left out of pooling" in self.wrong:
            rows = rows[1:]
        poolings = {"pooling cls": rows[0], "pooling max": rows.max(0), "pooling lasttoken": rows[-1]}
        for name in poolings.keys() & self.wrong:
            return poolings[name]
        weights = np.arange(1, len(rows) + 1) if "pooling weightedmean" in self.wrong else np.ones(len(rows))
        return np.asarray((rows * weights[:, None].astype(rows.dtype)).sum(0) / rows.dtype.type(weights.sum()))
