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
IN_BLOCKS = {"activation gelu_new": "activation gelu_new", "causal": "causal mask where there is none",
             "no scale": "no division by sqrt(head_dim)",
             **{f"{which} residual missing": f"{which} residual missing" for which in ("first", "second")}}  # fmt: skip


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
        if "blocks exchanged" in self.wrong:
            other = {"encoder.layer.0.": "encoder.layer.1.", "encoder.layer.1.": "encoder.layer.0."}
            stored = self.port.tensors
            self.port.tensors = {other.get(name[:16], name[:16]) + name[16:]: x for name, x in stored.items()}
        if "without biases" in self.wrong:
            self.port.tensors = {k: x * (not k.endswith("bias")) for k, x in self.port.tensors.items()}
        if "one bias" in self.wrong:
            self.port.tensors = {
                k: x * (not k.endswith("intermediate.dense.bias")) for k, x in self.port.tensors.items()
            }
        if "one head" in self.wrong:
            self.port.size *= self.port.heads
            self.port.heads = self.port.key_heads = 1
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = {"lowercase": "case kept" not in self.wrong, "strip_accents": "accents kept" not in self.wrong}
        self.tokenizer.normalizer = normalizers.BertNormalizer(**settings)

    def __call__(self, texts: Sequence[str]) -> Array:
        counts = [len(self.ids(text)) for text in texts]
        longest = [max(counts[i - i % 4 :][:4]) if "requests of 4" in self.wrong else 20 for i in range(len(texts))]
        made = np.stack([self.vector(text, most) for text, most in zip(texts, longest, strict=True)])
        if "sum of sizes" in self.wrong:
            made = made / np.abs(made).sum(1, keepdims=True)
        elif "vectors not normalized" not in self.wrong:
            made = made / np.sqrt((made * made).sum(1, keepdims=True))
        if "truncated to 6" in self.wrong:
            made = made[:, :6]
        return np.asarray(made, np.float32)

    def ids(self, text: str) -> list[int]:
        prompts = {"prompt missing": "", "prompt doubled": 2 * PROMPT}
        prompt = next((text for name, text in prompts.items() if name in self.wrong), PROMPT)
        ids = list(self.tokenizer.encode(prompt + text).ids)
        longest = 8 if "truncated at 8" in self.wrong else LONGEST
        if len(ids) > longest:
            at_the_end = [*ids[: longest - 1], ids[-1]]
            others = {"beginning cut": [ids[0], *ids[1 - longest :]], "ids cut": ids[:longest],
                      "ids cut before": ids[-longest:]}  # fmt: skip
            ids = next((others[name] for name in others if name in self.wrong), at_the_end)
        if "[SEP] twice" in self.wrong:
            ids = [*ids, ids[-1]]
        if "[CLS] twice" in self.wrong:
            ids = [ids[0], *ids]
        if "exchanged" in self.wrong:
            ids = [ids[-1], *ids[1:-1], ids[0]]
        if "no [CLS]" in self.wrong:
            ids = ids[1:]
        return ids[:-1] if "no [SEP]" in self.wrong else ids

    def vector(self, text: str, longest: int) -> Array:
        ids, left = self.ids(text), "padding before" in self.wrong
        count, pads = len(ids), longest - len(ids) if left or {"padding pooled", "padding seen"} & self.wrong else 0
        batch = {"input_ids": np.array([[0] * pads + ids if left else ids + [0] * pads])}
        if pads and "padding seen" not in self.wrong:
            batch["attention_mask"] = (batch["input_ids"] != 0).astype(np.int64)
        start = 1 if "positions from 1" in self.wrong else 0
        batch["position_ids"] = np.arange(start, start + count + pads)[None]
        if "types of 1" in self.wrong:
            batch["token_type_ids"] = np.ones_like(batch["input_ids"])
        made = self.port.run(batch)
        rows = made[f"hidden_states.{self.depth}"][0]
        if "first and last block" in self.wrong:
            rows = (rows + made["hidden_states.1"][0]) / 2
        if "rows of length 1" in self.wrong:
            rows = rows / np.sqrt((rows * rows).sum(1, keepdims=True))
        if "padding pooled" not in self.wrong:
            rows = rows[pads:] if left else rows[:count]
        if "special tokens not pooled" in self.wrong:
            rows = rows[1:-1]
        if "[CLS] not pooled" in self.wrong:
            rows = rows[1:]
        if "sum" in self.wrong:
            return rows.sum(0)
        if "first token" in self.wrong:
            return rows[0]
        if "largest" in self.wrong:
            return rows.max(0)
        if "last token" in self.wrong:
            return rows[-1]
        weights = np.arange(1, len(rows) + 1) if "weighted" in self.wrong else np.ones(len(rows))
        return (rows * weights[:, None].astype(rows.dtype)).sum(0) / rows.dtype.type(weights.sum())
