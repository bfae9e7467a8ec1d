"""Tiny checkpoints, made byte by byte, so that a test can also make one that lies.

Every format and size here is chosen for its edge cases: dim 8 sums in one breath, 7 is odd, and a data area that starts
at an odd byte cannot be read in place by every instruction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

Stored = tuple[str, tuple[int, ...], bytes]  # format in the file's words, shape, raw numbers

FORMATS = {"f4": "F32", "f8": "F64", "f2": "F16", "i8": "I64", "i1": "I8", "u1": "U8"}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "!", "we", "lived", "above", "the", "clouds")
VOCAB = len(WORDS)

BERT = {
    "model_type": "bert", "vocab_size": VOCAB, "hidden_size": 8, "max_position_embeddings": 16, "type_vocab_size": 2,
    "pad_token_id": 0, "layer_norm_eps": 1e-12,
}  # fmt: skip
ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 18}
DISTILBERT = {"model_type": "distilbert", "vocab_size": VOCAB, "dim": 8, "max_position_embeddings": 16}
GPT2 = {"model_type": "gpt2", "vocab_size": 261, "n_embd": 8, "n_positions": 32}
T5 = {
    "model_type": "t5", "vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "num_heads": 2, "n_positions": 512,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"translation_en_to_de": {"max_length": 300, "prefix": "translate: "}},
}  # fmt: skip
ELECTRA = {**BERT, "model_type": "electra", "embedding_size": 6}
CONVBERT = {**BERT, "model_type": "convbert", "embedding_size": 8}  # which has no blocks here
DEBERTA = {**BERT, "model_type": "deberta-v2", "type_vocab_size": 0}


def numbers(*shape: int, seed: int = 0) -> Array:
    """Rows with a mean of their own, as trained tables have. float32."""
    generator = np.random.default_rng((seed, *shape))
    return np.asarray(generator.standard_normal(shape) + generator.standard_normal(shape[-1]), np.float32)


def tensors(config: Mapping[str, Any]) -> dict[str, Array]:
    """The input layer's tensors for one of the configs above, by the base model's names."""
    kind, vocab = config["model_type"], config["vocab_size"]
    if kind == "gpt2":
        return {"wte.weight": numbers(vocab, 8, seed=1), "wpe.weight": numbers(config["n_positions"], 8, seed=2)}
    if kind == "t5":
        bias = numbers(32, config["num_heads"], seed=6)
        name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        return {"shared.weight": numbers(vocab, 8, seed=1), name: bias}
    width = config.get("embedding_size", 8)
    made = {
        "embeddings.word_embeddings.weight": numbers(vocab, width, seed=1),
        "embeddings.position_embeddings.weight": numbers(config["max_position_embeddings"], width, seed=2),
        "embeddings.LayerNorm.weight": 1 + numbers(width, seed=4),
        "embeddings.LayerNorm.bias": numbers(width, seed=5),
    }
    if config.get("type_vocab_size"):
        made["embeddings.token_type_embeddings.weight"] = numbers(config["type_vocab_size"], width, seed=3)
    if kind == "electra":
        made["embeddings_project.weight"] = numbers(8, width, seed=7)
        made["embeddings_project.bias"] = numbers(8, seed=8)
    return made


def stored(array: Array | Stored) -> Stored:
    if isinstance(array, tuple):
        return array
    return FORMATS[array.dtype.str[1:]], array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes()


def bfloat16(array: Array) -> Stored:
    """The upper halves of float32 numbers: those that survive are exactly the stored ones."""
    return "BF16", array.shape, (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def as_stored(array: Array, kind: str) -> Stored:
    return bfloat16(array) if kind == "BF16" else stored(array.astype({"F64": "f8", "F32": "f4", "F16": "f2"}[kind]))


def entries(named: Mapping[str, Array | Stored]) -> tuple[dict[str, Any], bytes]:
    """A true header, as a dict to spoil, and the data area."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in named.items():
        dtype, shape, raw = stored(array)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return header, data


def assemble(header: Any, data: bytes, shift: int = 0) -> bytes:
    """Length, header (an object, or its text), data. The data begins `shift` bytes past a multiple of eight."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + shift)
    return len(text).to_bytes(8, "little") + text + data


def pack(named: Mapping[str, Array | Stored], metadata: Mapping[str, str] | None = None, shift: int = 0) -> bytes:
    header, data = entries(named)
    return assemble(({"__metadata__": dict(metadata)} if metadata else {}) | header, data, shift)


def write(
    folder: Path,
    config: Mapping[str, Any] = BERT,
    named: Mapping[str, Array | Stored] | None = None,
    metadata: Mapping[str, str] | None = None,
    shift: int = 0,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(pack(tensors(config) if named is None else named, metadata, shift))
    return folder


def write_hollow(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """A model of any size in float32 whose numbers, all zero, take no place on the disk: where each tensor begins."""
    folder.mkdir(parents=True, exist_ok=True)
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = assemble(header, b"")
    with open(folder / "model.safetensors", "wb") as file:
        file.write(head)
        file.truncate(len(head) + end)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {name: len(head) + entry["data_offsets"][0] for name, entry in header.items()}


def write_shards(folder: Path, config: Mapping[str, Any], shards: list[dict[str, Array]]) -> Path:
    """A model folder whose tensors lie in several files, with the index that says which."""
    (write(folder, config, {}) / "model.safetensors").unlink()
    weight_map = {}
    for number, named in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        (folder / file).write_bytes(pack(named))
        weight_map |= dict.fromkeys(named, file)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def wordpiece_json(words: Iterable[str] = WORDS, **settings: Any) -> str:
    """A tokenizer.json that splits as BERT's does."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    reader = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    reader.normalizer = normalizers.BertNormalizer()
    reader.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    reader.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    reader.add_special_tokens(list(SPECIAL))
    return json.dumps(json.loads(reader.to_str()) | settings)


def write_vocab(folder: Path, words: tuple[str, ...] = WORDS) -> Path:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return folder


def write_wordpiece(folder: Path, **settings: Any) -> Path:
    (folder / "tokenizer.json").write_text(wordpiece_json(**settings), encoding="utf-8")
    return folder


def change_json(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | keys), encoding="utf-8")


def write_byte_level(folder: Path, special: tuple[str, ...] = ("<|endoftext|>",)) -> Path:
    """vocab.json and merges.txt as GPT-2 has them: 256 bytes, two merges, special tokens."""
    from tokenizers import pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "Ġw", *special]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nĠ w\n", encoding="utf-8")
    return folder


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays are equal to the bit: -0.0 is not 0.0, and a NaN equals itself."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


IDS = np.array([[1, 5, 6, 0], [63, 2, 2, 9]])


def result(folder: Path, **keywords: Any) -> Array:
    import minibert

    with minibert.load(folder, **keywords) as layer:
        return layer(IDS)


def ids_of(layer: Any, *texts: Any, **keywords: Any) -> Any:
    return layer.tokenize(*texts, **keywords)["input_ids"].tolist()
