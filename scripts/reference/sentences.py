"""Make tests/reference/sentences-*: small folders written by sentence-transformers, and its results for them.

    python scripts/reference/sentences.py            write the folders anew
    python scripts/reference/sentences.py --check    make them elsewhere, compare; exit 1 on a difference

It needs sentence-transformers (`pip install sentence-transformers==6.2.0`). Each folder holds a model of seeded numbers
as sentence-transformers saves it. In some folders files are then rewritten in their older form, which
sentence-transformers reads again. Beside the model:

    calls.json            what was called: a method, texts, options
    vectors.safetensors   what each call gave: "0", "1", ... in the calls' order
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import check
import checkpoints
import numpy as np
import torch
import transformers
from check import ROOT, make_or_check, parser_of, write_json
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from torch import nn

TOLERANCE = 3e-6  # times a vector's largest number; measured between torch's AVX-512, AVX2 and SSE4.1: 1.1e-6
TEXTS = [
    "", "we", "We lived above the clouds!", "clouds above", "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "[CLS] the [SEP]", "ÉTÉ été", "THE CLOUDS", "the clouds",
]  # fmt: skip
SIZES = {
    "vocab_size": checkpoints.VOCAB, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 32,
}  # fmt: skip
ALL = ("max", "cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens", "mean")  # not in the order of the flags
IDENTITY = nn.Identity()
TASKS = {"query": "task: search result | query: ", "document": "title: none | text: "}
Call = tuple[str, list[str] | str, dict[str, Any]]
Builder = Callable[[Path, Path], list[Any]]
Finish = Callable[[Path, list[Any]], dict[str, dict[str, Any]]]


def each(texts: list[str], *methods: str) -> list[Call]:
    return [(method, texts, {}) for method in methods]


def raw(folder: Path, kind: str, spread: int = 8, **config: Any) -> Path:
    """Save a seeded model of a class of transformers."""
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**config))
    check.fill(model, spread, norms=spread // 2)  # seeded numbers are small: attention would be nearly even
    model.save_pretrained(folder)
    return folder


def bert(folder: Path, cased: bool = False, **tokenizer: Any) -> Path:
    """A seeded BERT with a tokenizer, as transformers saves it."""
    with_wordpiece(raw(folder, "BertModel", **SIZES), **tokenizer)
    return checkpoints.write_wordpiece(folder, normalizer=None) if cased else folder


def with_wordpiece(folder: Path, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write_wordpiece(folder)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, **settings}
    dump(folder / "tokenizer_config.json", settings)
    return folder


def gpt2(folder: Path) -> Path:
    raw(folder, "GPT2Model", vocab_size=261, n_embd=8, n_layer=2, n_head=2, n_positions=32)
    checkpoints.write_byte_level(folder)
    settings = {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<|endoftext|>", "model_max_length": 32}
    dump(folder / "tokenizer_config.json", settings)
    return folder


def today(folder: Path, kind: str, **config: Any) -> Path:
    """A seeded newer model with GPT-2's tokens, padded on the left; each text gets a token at its end."""
    sizes = {**SIZES, "vocab_size": 261, "num_key_value_heads": 1, "head_dim": 6, "pad_token_id": 256}
    checkpoints.write_byte_level(raw(folder, kind, **{**sizes, **config}))
    rules = json.loads(transformers.GPT2Tokenizer.from_pretrained(folder).backend_tokenizer.to_str())
    for older in ("vocab.json", "merges.txt"):
        (folder / older).unlink()
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    rules["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, end],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}},
    }  # fmt: skip
    dump(folder / "tokenizer.json", rules)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|endoftext|>", "model_max_length": 30}
    dump(folder / "tokenizer_config.json", {**settings, "padding_side": "left"})
    return folder


def save(chain: list[Any], folder: Path, **options: Any) -> None:
    for module in chain:
        if isinstance(module, (Dense, LayerNorm)):
            check.fill(module, spread=8, norms=4)
    SentenceTransformer(modules=chain, device="cpu", **options).save(str(folder), create_model_card=False)


def dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    dump(path, change(json.loads(path.read_text(encoding="utf-8"))))


# -- the folders -------------------------------------------------------------------------------------------------


def dense(parts: Path, folder: Path) -> list[Call]:
    """Mean, a dense layer with tanh, Normalize: all keys in the newest spelling; compared by cosine."""
    save([Transformer(str(bert(parts / "t"))), Pooling(8, "mean"), Dense(8, 6), Normalize()], folder)
    return [
        ("encode", TEXTS, {}), ("encode", "we lived", {}), ("encode", TEXTS, {"truncate_dim": 4}),
        ("encode", TEXTS, {"truncate_dim": 4, "normalize_embeddings": True}),
        ("encode", "we lived", {"output_value": "token_embeddings"}), ("similarity", TEXTS, {}),
    ]  # fmt: skip


def cls(parts: Path, folder: Path) -> list[Call]:
    """The first token, truncated at 8 tokens; the oldest spelling: flags, sentence_roberta_config.json, a subfolder."""
    save([Transformer(str(bert(parts / "t"))), Pooling(8, "cls")], folder, similarity_fn_name="dot")
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(folder / "0_Transformer" / name)
    (folder / "sentence_bert_config.json").unlink()
    dump(folder / "0_Transformer/sentence_roberta_config.json", {"max_seq_length": 8, "do_lower_case": False})
    flags = {f"pooling_mode_{name}": False for name in ("mean_tokens", "max_tokens", "mean_sqrt_len_tokens")}
    dump(folder / "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_cls_token": True, **flags})
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(("Transformer", "Pooling"))
    ]
    dump(folder / "modules.json", modules)
    normalized: Call = ("encode", TEXTS, {"normalize_embeddings": True})
    return [*each(TEXTS, "encode"), normalized, *each(TEXTS, "similarity")]


def prompts(parts: Path, folder: Path) -> list[Call]:
    """Prompts, one of them the default; their tokens are not pooled; all six poolings in an unusual order."""
    chain = [Transformer(str(bert(parts / "t", model_max_length=12))), Pooling(8, ALL, include_prompt=False)]
    named = {"query": "the clouds: ", "passage": "above! "}
    save(chain, folder, prompts=named, default_prompt_name="passage", similarity_fn_name="euclidean")
    options: list[dict[str, Any]] = [{}, {"prompt_name": "query"}, {"prompt": "we "}, {"prompt": ""}]
    return [
        *(("encode", TEXTS, more) for more in options), *each(TEXTS, "encode_query", "encode_document"),
        ("encode_document", "clouds", {"prompt_name": "passage"}), ("similarity", TEXTS, {}),
    ]  # fmt: skip


def flags(parts: Path, folder: Path) -> list[Call]:
    """All older flags at once, concatenated in their order; lower case; the folder truncates vectors."""
    cased = bert(parts / "t", cased=True, model_max_length=1000000000000000019884624838656)
    chain = [Transformer(str(cased), do_lower_case=True), Pooling(8, ALL)]
    save(chain, folder, truncate_dim=40, similarity_fn_name="manhattan")
    dump(folder / "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": True})
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    made = {"word_embedding_dimension": 8, **{f"pooling_mode_{name}": True for name in names}}
    dump(folder / "1_Pooling/config.json", made)
    shutil.copy(parts / "t" / "tokenizer.json", folder / "tokenizer.json")  # the folder's own is cased
    options: list[dict[str, Any]] = [{}, {"truncate_dim": 48}, {"prompt": "THE "}]
    return [*(("encode", TEXTS, more) for more in options), ("similarity", TEXTS, {})]


def residual(parts: Path, folder: Path) -> list[Call]:
    """Dense layers of every kind in a row, and a maximum length for queries."""
    chain = [
        Transformer(str(bert(parts / "t")), query_length=4), Pooling(8, "mean"),
        Dense(8, 8, activation_function=nn.GELU(), use_residual=True), Normalize(),
        Dense(8, 12, bias=False, activation_function=IDENTITY),
        Dense(12, 5, activation_function=nn.ReLU(), use_residual=True), Dense(5, 5, activation_function=nn.SiLU()),
    ]  # fmt: skip
    save(chain, folder)
    return each(TEXTS, "encode", "encode_query", "encode_document")


def modules(parts: Path, folder: Path) -> list[Call]:
    """LayerNorm, Dropout and dense layers with the remaining activations, each with its class's defaults."""
    chain = [Transformer(str(bert(parts / "t"))), Pooling(8, "mean"), LayerNorm(8), Dropout(0.5)]
    for activation in (nn.Sigmoid(), nn.LeakyReLU(), nn.ReLU6()):
        chain += [Dense(8, 8, activation_function=activation), LayerNorm(8)]
    save([*chain, Dense(8, 6, activation_function=nn.Softmax(dim=-1))], folder)
    return [("encode", TEXTS, {}), ("encode", "we lived", {})]


def causal(parts: Path, folder: Path) -> list[Call]:
    """GPT-2: causal, without special tokens around a text."""
    pool = Pooling(8, ("weightedmean", "lasttoken"), include_prompt=False)
    save([Transformer(str(gpt2(parts / "t"))), pool], folder)
    texts = [text for text in TEXTS if text]  # it fails for a batch without any token
    return [("encode", texts, {}), ("encode", texts, {"prompt": "he: "})]


def bare(parts: Path, folder: Path) -> list[Call]:
    """No modules.json: the mean, and no other file is read."""
    shutil.copytree(bert(parts / "t", model_max_length=10), folder)
    dump(folder / "sentence_bert_config.json", {"max_seq_length": 5})
    return each(TEXTS, "encode", "encode_query")


def last_token(parts: Path, folder: Path) -> list[Call]:
    """As Qwen3-Embedding: Qwen3, the last token, which ends each text, an instruction before queries, left padding."""
    chain = [Transformer(str(today(parts / "t", "Qwen3Model"))), Pooling(8, "lasttoken"), Normalize()]
    save(chain, folder, prompts={"query": "Instruct: find\nQuery:", "document": ""})
    return each([*TEXTS, "long " * 40], "encode", "encode_query", "encode_document")


def two_dense(parts: Path, folder: Path) -> list[Call]:
    """As EmbeddingGemma: Gemma 3 without a causal mask, the mean, two dense layers without activation, Normalize."""
    gemma = today(
        parts / "t", "Gemma3TextModel", use_bidirectional_attention=True, sliding_window=5, query_pre_attn_scalar=4,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    wide, back = (Dense(*sizes, bias=False, activation_function=IDENTITY) for sizes in ((8, 16), (16, 8)))
    save([Transformer(str(gemma)), Pooling(8, "mean"), wide, back, Normalize()], folder, prompts=TASKS)
    return [*each(TEXTS, "encode", "encode_query"), ("encode_document", TEXTS, {"truncate_dim": 4})]


def per_layer_inputs(parts: Path, folder: Path) -> list[Call]:
    """As EmbeddingGemma 2: its text tower, the mean, Normalize; settings for images beside those for texts."""
    gemma = today(
        parts / "t", "EmbeddingGemma2TextModel", sliding_window=3, sliding_window_pattern=2, global_head_dim=4,
        num_global_key_value_heads=2, hidden_size_per_layer_input=5, embedding_dim=12,
    )  # fmt: skip
    save([Transformer(str(gemma)), Pooling(12, "mean"), Normalize()], folder, prompts=TASKS)
    image = {"image": {"method": "forward", "method_output_name": "last_hidden_state"}}
    rewrite(
        folder / "sentence_bert_config.json",
        lambda settings: settings | {"modality_config": settings["modality_config"] | image},
    )
    texts = [*TEXTS, "long " * 20]
    return [*each(texts, "encode", "encode_query"), ("encode_document", texts, {"truncate_dim": 4})]


def search(parts: Path, folder: Path) -> list[Call]:
    """As nomic-embed-text: NomicBERT by its older names, the mean, prompts."""
    name = str(with_wordpiece(raw(parts / "t", "NomicBertModel", **SIZES)))
    named = {"query": "search_query: ", "document": "search_document: "}
    save([Transformer(name), Pooling(8, "mean")], folder, prompts=named)
    return each(TEXTS, "encode", "encode_query", "encode_document")


def first_token(parts: Path, folder: Path) -> list[Call]:
    """As gte-modernbert: ModernBERT, pooled by the first token; longer texts than its window."""
    config = SIZES | {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0}
    name = str(with_wordpiece(raw(parts / "t", "ModernBertModel", **config)))
    save([Transformer(name), Pooling(8, "cls")], folder)
    return [("encode", TEXTS, {}), ("encode", "we lived", {})]


def t5(parts: Path, folder: Path) -> list[Call]:
    """As sentence-t5, gtr and instructor: T5's encoder, the mean without the prompt, a dense layer, Normalize."""
    sizes = {"d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16, "d_kv": 6, "feed_forward_proj": "gated-gelu"}
    model = raw(parts / "t", "T5EncoderModel", vocab_size=checkpoints.VOCAB, **sizes)
    name, pool = str(with_wordpiece(model, model_max_length=40)), Pooling(8, "mean", include_prompt=False)
    chain = [Transformer(name), pool, Dense(8, 6, bias=False, activation_function=IDENTITY), Normalize()]
    save(chain, folder, prompts={"query": "the clouds: ", "document": ""})
    texts = [*TEXTS, "long " * 60]
    return [*each(texts, "encode", "encode_query"), ("encode", texts, {"prompt": "we lived "})]


FOLDERS = (
    dense, cls, prompts, flags, residual, modules, causal, bare,
    last_token, two_dense, per_layer_inputs, search, first_token, t5,
)  # fmt: skip


def vectors(model: SentenceTransformer, call: Call) -> np.ndarray[Any, Any]:
    method, texts, options = call
    if method == "similarity":
        made = model.encode(texts)
        return np.asarray(model.similarity(made[:3], made))
    return np.ascontiguousarray(getattr(model, method)(texts, **options), np.float32)


def make_folders(target: Path, prefix: str, builders: tuple[Builder, ...], finish: Finish) -> None:
    """Build each folder again; `finish` turns its calls into calls.json."""
    torch.set_num_threads(1)
    for build in builders:
        folder = target / f"{prefix}-{build.__name__.replace('_', '-')}"
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as parts:
            write_json(folder / "calls.json", finish(folder, build(Path(parts), folder)), 1)
        for extra in (folder / name for name in ("README.md", "special_tokens_map.json")):
            extra.unlink(missing_ok=True)
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes files that only their owner may read


def with_vectors(folder: Path, calls: list[Call]) -> dict[str, dict[str, Any]]:
    model = SentenceTransformer(str(folder), device="cpu")  # as a user would: read from the files
    save_file({str(i): vectors(model, call) for i, call in enumerate(calls)}, folder / "vectors.safetensors")
    return {str(i): dict(zip(("method", "texts", "options"), call, strict=True)) for i, call in enumerate(calls)}


def differences(old: Path, new: Path) -> Iterator[str]:
    for folder in sorted(new.iterdir()):
        a, b = (load_file(each / folder.name / "vectors.safetensors") for each in (old, new))
        calls = [(each / folder.name / "calls.json").read_bytes() for each in (old, new)]
        if calls[0] != calls[1] or a.keys() != b.keys():
            yield f"{folder.name}: other calls"
        else:
            for key, x in a.items():
                if x.shape != b[key].shape or np.abs(x - b[key]).max() > TOLERANCE * np.abs(x).max():
                    yield f"{folder.name}: call {key}"


def run(
    about: str | None, prefix: str, builders: tuple[Builder, ...], finish: Finish = with_vectors,
    compare: Any = differences,
) -> int:  # fmt: skip
    """Run the command line of a maker of folders, whose docstring is `about`."""
    make = partial(make_folders, prefix=prefix, builders=builders, finish=finish)
    return make_or_check(parser_of(about).parse_args().check, ROOT / "tests" / "reference", make, compare)


if __name__ == "__main__":
    sys.exit(run(__doc__, "sentences", FOLDERS))
