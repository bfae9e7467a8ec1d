"""Section weights: a model of Qwen3-Embedding-0.6B's size, with its weights widened and with weights that stay mapped.

The folder is made here, 1.2 GB of bfloat16: seeded numbers, and a tokenizer with as many words. Memory is what belongs
to the process alone (RssAnon of /proc/self/status, looked at every five milliseconds), from its start to its end:
Python, the libraries, the tokenizer and every array, but not the pages of the mapped file, which the system may drop.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from .measure import Limit, Row, Settings, compare, unmeasured
from .processes import child

SIZES: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_669, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "hidden_act": "silu", "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
MODULES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": SIZES["hidden_size"], "pooling_mode_lasttoken": True},
    "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"},
}
PIECE = 1 << 22  # numbers made at a time


def weights(settings: Settings) -> list[Row]:
    """Memory and speed of both ways, a fresh process for each, in turn."""
    if sys.platform != "linux":
        return [unmeasured("a bfloat16 model of 0.6 billion numbers", "needs /proc")]
    folder = seeded_qwen3(settings.models)
    found: dict[str, list[dict[str, Any]]] = {"low_memory": [], "widened": []}
    for _ in range(settings.rounds(3)):
        for way in found:
            found[way].append(child("narrow_weights", folder, way))
    of = {way: {key: [float(one[key]) for one in each] for key in each[0]} for way, each in found.items()}
    ours, other = of["low_memory"], of["widened"]
    rows = [
        compare(f"peak of private memory, {what}", ours[key], other[key], "widened", "B", limit=Limit("<=", 477, "MiB"))
        for key, what in (("peak", "load, one text, 32 texts"), ("peak_words", "and the next word of a text"))
    ]
    rows += [
        compare(what, ours[key], other[key], "widened")
        for key, what in (
            ("load", "load"), ("one", "one text of six words"), ("many", "32 texts of 4 to 31 words"),
            ("word", "the next word of a text"),
        )
    ]  # fmt: skip
    same = all(one["bits"] == found["widened"][0]["bits"] for each in found.values() for one in each)
    return [*rows, Row("vectors of both ways", "the same bits" if same else "**other bits**", met=same)]


def seeded_qwen3(models: Path) -> Path:
    """Make the folder, or find it again."""
    folder = models / "qwen3-0.6b"
    if (folder / "done").exists():
        return folder
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": SIZES, "tokenizer.json": tokenizer(), **MODULES}.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    write_weights(folder / "model.safetensors")
    (folder / "done").touch()
    return folder


def shapes() -> dict[str, tuple[int, ...]]:
    dim, inner, head = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["head_dim"]
    queries, keys = (head * SIZES[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (dim,), "self_attn.q_proj": (queries, dim), "self_attn.k_proj": (keys, dim),
        "self_attn.v_proj": (keys, dim), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
        "self_attn.o_proj": (dim, queries), "post_attention_layernorm": (dim,), "mlp.gate_proj": (inner, dim),
        "mlp.up_proj": (inner, dim), "mlp.down_proj": (dim, inner),
    }  # fmt: skip
    found = {"model.embed_tokens.weight": (SIZES["vocab_size"], dim), "model.norm.weight": (dim,)}
    for i in range(SIZES["num_hidden_layers"]):
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    return found


def write_weights(path: Path) -> None:
    """Normal numbers of a trained model's size, 1 for the norms; each is the upper half of a float32."""
    import numpy as np

    from minibert.files.arrays import ordered, safetensors_header

    named = {name: ("BF16", np.broadcast_to(np.zeros((), np.uint16), shape)) for name, shape in shapes().items()}
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(safetensors_header(named))
        for _, (_, like) in ordered(named):
            for start in range(0, like.size, PIECE):
                count = min(PIECE, like.size - start)
                x = generator.standard_normal(count, np.float32) * np.float32(0.02) + np.float32(like.ndim == 1)
                file.write((x.view(np.uint32) >> 16).astype("<u2").tobytes())


def tokenizer() -> dict[str, Any]:
    """Byte-level BPE: the 256 bytes, an end, and words of two letters, three and four until there are enough."""
    bytes_ = [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]  # as letters, GPT-2's table
    words = ["<|endoftext|>", *map(chr, bytes_)]
    merges: list[tuple[str, str]] = list(islice(_pairs(), SIZES["vocab_size"] - len(words)))
    words += [first + second for first, second in merges]
    end = {"id": 0, "content": words[0], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)},
                  "merges": [f"{first} {second}" for first, second in merges]},
    }  # fmt: skip


def _pairs() -> Iterator[tuple[str, str]]:
    for length in (2, 3, 4):
        for *first, last in product(ascii_lowercase, repeat=length):
            yield "".join(first), last


def sample_texts() -> list[str]:
    """32 texts of 4 to 31 words, of about three tokens each; the first has six."""
    import numpy as np

    generator = np.random.default_rng(1)
    words = generator.choice(list(ascii_lowercase), (32, 32, 4))
    lengths = [6, *generator.integers(4, 32, 31)]
    return [" ".join("".join(word) for word in text[:length]) for text, length in zip(words, lengths, strict=True)]
