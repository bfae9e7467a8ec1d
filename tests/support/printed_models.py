"""Models that everyone knows, as they are on the Hub: config, tensors, layout and size; their numbers are made up.

The files have holes and take next to no disk. Of bert-base-uncased and gpt2 the printed rows stand where they belong.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from fake_hub import FakeHub, redirect_to_second
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from minibert.verify import shipped
from minibert.verify.shipped import half_units

Shapes = dict[str, tuple[int, ...]]
FACTS: dict[str, Any] = json.loads(Path(__file__).with_name("real_facts.json").read_text(encoding="utf-8"))
RERANKER = "cross-encoder/ms-marco-MiniLM-L6-v2"
# bytes of model.safetensors on the Hub. gpt2's has 548,105,171 there: its tensors have an order that is not known here
SIZES = {"bert-base-uncased": 440_449_768, "gpt2": 548_105_227, "t5-small": 242_043_056, RERANKER: 90_870_598}

BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 30522, "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
    "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0, "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": BERT,
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
        "n_head": 12, "n_positions": 1024, "n_ctx": 1024, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": 50256, "eos_token_id": 50256,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "t5-small": {
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128, "d_model": 512,
        "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_heads": 8, "n_positions": 512, "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32, "is_encoder_decoder": True, "pad_token_id": 0, "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "task_specific_params": {"translation_en_to_de": {"max_length": 300, "prefix": "English to German: "}},
    },
    RERANKER: BERT | {
        "architectures": ["BertForSequenceClassification"], "hidden_size": 384, "num_hidden_layers": 6,
        "intermediate_size": 1536, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"},
    },
}  # fmt: skip


def bert_shapes(dim: int, depth: int, norm: tuple[str, str]) -> Shapes:
    """Return the tensors of BERT without a head; a norm's names are older in older files."""
    embeddings = {"word_embeddings": 30522, "position_embeddings": 512, "token_type_embeddings": 2}
    shapes: Shapes = {f"bert.embeddings.{name}.weight": (rows, dim) for name, rows in embeddings.items()}
    shapes |= {"bert.pooler.dense.weight": (dim, dim), "bert.pooler.dense.bias": (dim,)}
    norms = ["bert.embeddings"]
    for block in (f"bert.encoder.layer.{i}" for i in range(depth)):
        wide = {"intermediate.dense": (4 * dim, dim), "output.dense": (dim, 4 * dim)}
        square = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        for name, shape in (wide | dict.fromkeys(square, (dim, dim))).items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
        norms += [f"{block}.attention.output", f"{block}.output"]
    return shapes | {f"{at}.LayerNorm.{name}": (dim,) for at in norms for name in norm}


def gpt2_shapes() -> Shapes:
    """Return GPT-2's tensors with the mask of each block, which its file holds too."""
    dim = 768
    shapes: Shapes = {"wte.weight": (50257, dim), "wpe.weight": (1024, dim), "ln_f.weight": (dim,), "ln_f.bias": (dim,)}
    for block in (f"h.{i}" for i in range(12)):
        shapes[f"{block}.attn.bias"] = (1, 1, 1024, 1024)
        wide = {"attn.c_attn": (dim, 3 * dim), "mlp.c_fc": (dim, 4 * dim), "mlp.c_proj": (4 * dim, dim)}
        for name, shape in (wide | {"attn.c_proj": (dim, dim)}).items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[1:]}
        shapes |= {f"{block}.{norm}.{name}": (dim,) for norm in ("ln_1", "ln_2") for name in ("weight", "bias")}
    return shapes


def t5_shapes() -> Shapes:
    """Return t5-small's tensors with the one that no program uses: relative positions in cross-attention."""
    dim, wide = 512, 2048
    shapes: Shapes = {"shared.weight": (32128, dim)}
    for side, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        shapes[f"{side}.final_layer_norm.weight"] = (dim,)
        for i in range(6):
            for j, attention in enumerate(attentions):
                layer = f"{side}.block.{i}.layer.{j}"
                shapes |= {f"{layer}.{attention}.{name}.weight": (dim, dim) for name in "qkvo"}
                shapes |= {f"{layer}.layer_norm.weight": (dim,)}
                if i == 0:
                    shapes[f"{layer}.{attention}.relative_attention_bias.weight"] = (32, 8)
            last = f"{side}.block.{i}.layer.{len(attentions)}"
            dense = {"wi": (wide, dim), "wo": (dim, wide)}
            shapes |= {f"{last}.DenseReluDense.{name}.weight": shape for name, shape in dense.items()}
            shapes |= {f"{last}.layer_norm.weight": (dim,)}
    return shapes


def shapes_of(model: str) -> Shapes:
    """Return the tensors of model.safetensors by the names that it has on the Hub."""
    if model == "bert-base-uncased":
        dim, words = 768, 30522
        head: Shapes = {"bias": (words,), "transform.dense.weight": (dim, dim), "transform.dense.bias": (dim,)}
        head |= {f"transform.LayerNorm.{name}": (dim,) for name in ("gamma", "beta")}
        pairs: Shapes = {"cls.seq_relationship.weight": (2, dim), "cls.seq_relationship.bias": (2,)}
        named = {f"cls.predictions.{name}": shape for name, shape in head.items()}
        return bert_shapes(dim, 12, ("gamma", "beta")) | named | pairs
    if model == RERANKER:
        ids: Shapes = {"bert.embeddings.position_ids": (1, 512)}
        head = {"classifier.weight": (1, 384), "classifier.bias": (1,)}
        return bert_shapes(384, 6, ("weight", "bias")) | ids | head
    return gpt2_shapes() if model == "gpt2" else t5_shapes()


def printed_of(model: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((shipped.DATA / f"{model}.json").read_text(encoding="utf-8"))
    return values


def is_row(entry: dict[str, Any]) -> bool:
    """Whether the numbers are a table's own; what is computed from whole rows cannot be made up from six numbers."""
    return entry["key"].endswith("_embeddings") or entry["key"] in ("wte", "wpe")


def write_layout(folder: Path, model: str) -> dict[str, np.memmap]:
    """Write config.json and a model.safetensors of the real size, all zeros; return its tensors, to be written to."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[model]), encoding="utf-8")
    shapes, end = shapes_of(model), 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    formats = {name: "I64" if name.endswith("position_ids") else "F32" for name in shapes}
    # the widest first, as the library does
    for name in sorted(shapes, key=lambda name: (formats[name] == "F32", name)):
        begin, end = end, end + math.prod(shapes[name]) * (4 if formats[name] == "F32" else 8)
        header[name] = {"dtype": formats[name], "shape": shapes[name], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    start = SIZES[model] - end  # in the file of gpt2 and the reranker at an odd byte
    assert 0 <= start - 8 - len(text) < 8, "the tensors are not those of a file of this size"
    text, path = text.ljust(start - 8), folder / "model.safetensors"
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(SIZES[model])
    return {
        name: np.memmap(path, "<i8" if formats[name] == "I64" else "<f4", "r+", start + entry["data_offsets"][0], shape)
        for name, shape in shapes.items()
        if (entry := header[name])
    }


def write_model(folder: Path, model: str) -> Path:
    """The layout of bert-base-uncased or gpt2, in which the printed numbers stand where they belong."""
    tables = write_layout(folder, model)
    values = [entry for entry in printed_of(model)["values"] if is_row(entry)]
    for entry in sorted(values, key=lambda entry: -half_units(entry["printed"]).max()):  # most digits last
        (name,) = [name for name in tables if name.endswith(f"{entry['key']}.weight")]
        for token, row in zip(entry["tokens"], entry["printed"], strict=True):
            by_place = "position" in name or name == "wpe.weight"
            place = token if by_place else 0 if "token_type" in name else entry["input_ids"][token]
            tables[name][place, entry["columns"]] = np.array(row, np.float32)
    return folder


def write_bert_tokenizer(folder: Path, minilm: Path) -> Path:
    """tokenizer.json of bert-base-uncased: all-MiniLM-L6-v2's but for how texts are cut and filled up."""
    read = json.loads((minilm / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(read | {"truncation": None, "padding": None}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}', encoding="utf-8")
    return folder


def write_gpt2_tokenizer(folder: Path) -> Tokenizer:
    """vocab.json and merges.txt with those of GPT-2's tokens that the tests' texts have, at their real ids.

    A merged token's id is 256 plus the place of its merge; the tokens at other places are made up.
    """
    merges = {int(place): merge for place, merge in FACTS["gpt2"]["merges"].items()}
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
    merged = [merges.get(place, f"<{place}>").replace(" ", "") for place in range(50_000)]
    tokens = [*letters, *merged, "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    lines = ["#version: 0.2", *(merges[place] for place in sorted(merges)), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


# an old name is sent on to the name with its owner
OWNERS = {"bert-base-uncased": "google-bert", "gpt2": "openai-community", "t5-small": "google-t5"}
# files that the Hub has beside those that minibert reads
OTHERS = ("README.md", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "onnx/model.onnx")


def add_as_on_the_hub(hub: FakeHub, model: str, folder: Path, commit: str = "") -> None:
    """Add a folder under its new name, with the other files of such a repository; another host has the large file."""
    name = f"{OWNERS[model]}/{model}" if model in OWNERS else model
    repository = hub.add(name, dict.fromkeys(OTHERS, b"") | {path.name: path for path in folder.iterdir()}, commit)
    if name != model:
        hub.add(model, {}, repository.commit, renamed=name)
    hub.misbehave(rf"{name}/resolve/.*/model\.safetensors", redirect_to_second)
