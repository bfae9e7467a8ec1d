"""Make tests/reference/uses-*: small folders for scores of pairs, labels, entities and sparse vectors, and what the
reference gives for them.

    python scripts/reference/uses.py            write the folders anew
    python scripts/reference/uses.py --check    make them elsewhere, compare; exit 1 on a difference

It needs sentence-transformers (`pip install sentence-transformers==6.2.0`). `predict` and `rank` are methods of its
CrossEncoder, `encode_sparse` is its SparseEncoder's `encode`; `classify` is transformers' pipeline for
text-classification with all labels, `entities` its pipeline for token-classification, grouped as "simple". Each folder
holds a model of seeded numbers, as these libraries save it or as they did in older versions, and

    calls.json    what was called, a method, its arguments and options, and what it gave
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from check import compare_json, seeded
from safetensors.numpy import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from sentences import SIZES, checkpoints, dump, raw, rewrite, run, with_wordpiece
from tokenizer_folders import BASES, vocabulary, write_tokenizer

TOLERANCE = 5e-6  # relative to max(1, |value|), between torch's kernels for AVX-512, AVX2, SSE4.1
PAIRS = [
    ["we", "the clouds"], ["the clouds", "we"], ["", "we"], ["we", ""], ["", ""],
    ["We lived above the clouds!", "a b c d e f g h i j k l m n o p q r s t u v w x y z"],
    ["a b c d e f g h i j k l m n o p q r s t u v w x y z", "We lived above"],
    ["a b c d e f g h i j k l m n", "n m l k j i h g f e d c b a the"],
    ["the [SEP] clouds", "[CLS] above"],
]  # fmt: skip
TEXTS = ["", "we", "We lived above the clouds!", "a b c d e f g h i j k l m n o p q r s t u v w x y z", "ÉTÉ été",
         "  the\n clouds we  lived. above, THE clouds"]  # fmt: skip
QUERY, DOCUMENTS = "the clouds", ["we lived", "above the clouds", "a b c", "", "above the clouds", "we lived above!"]
ROBERTA_SIZES = SIZES | {"max_position_embeddings": 34, "pad_token_id": 1, "type_vocab_size": 1}
DISTILBERT_SIZES = {
    "vocab_size": checkpoints.VOCAB, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16,
    "max_position_embeddings": 32,
}  # fmt: skip
SHARP = np.float32(160)
Call = tuple[str, list[Any], dict[str, Any]]


def labels(*names: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def tagger(folder: Path, kind: str, **config: Any) -> None:
    """A model of labels of tokens: most labels occur, and some of them more than once in a row."""
    raw(folder, kind, **config)
    shape = (len(config["id2label"]), SIZES["hidden_size"])
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.weight"] = SHARP * seeded.values(shape, salt=5)
    tensors["classifier.bias"] = np.zeros(shape[0], np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def with_tokenizer(folder: Path, name: str) -> dict[str, Any]:
    """A tokenizer of a class; return the sizes of a model for it."""
    write_tokenizer(folder, name, {"tokenizer_config.json": {"model_max_length": 20}})
    return ROBERTA_SIZES | {"vocab_size": len(vocabulary(BASES[name]))}


# -- the folders -------------------------------------------------------------------------------------------------


def reranker(parts: Path, folder: Path) -> list[Call]:
    """BERT, one label, as CrossEncoder saves it: Sigmoid by its name, a prompt, truncated at 14 tokens."""
    raw(with_wordpiece(parts / "t", model_max_length=14), "BertForSequenceClassification", **SIZES, num_labels=1)
    prompts = {"ask": "the clouds: "}
    CrossEncoder(str(parts / "t"), device="cpu", prompts=prompts).save(str(folder), create_model_card=False)
    options: list[dict[str, Any]] = [{"prompt_name": "ask"}, {"prompt": "we "}, {"apply_softmax": True}]
    return [
        *(("predict", [given], {}) for given in (PAIRS, PAIRS[0], [])),
        *(("predict", [PAIRS], more) for more in options), ("rank", [QUERY, DOCUMENTS], {}),
        ("rank", [QUERY, DOCUMENTS], {"top_k": 3, "return_documents": True}), ("rank", [QUERY, []], {}),
    ]  # fmt: skip


def reranker_bare(parts: Path, folder: Path) -> list[Call]:
    """XLM-RoBERTa as transformers saves it: two separators in a pair, and Sigmoid by default."""
    sizes = with_tokenizer(folder, "XLMRobertaTokenizer")
    raw(folder, "XLMRobertaForSequenceClassification", **sizes, num_labels=1)
    return [("predict", [PAIRS], {}), ("rank", [QUERY, DOCUMENTS], {"return_documents": True})]


def reranker_logits(parts: Path, folder: Path) -> list[Call]:
    """DistilBERT, no token types; Identity in config.json, as in folders of the previous year."""
    raw(with_wordpiece(folder), "DistilBertForSequenceClassification", **DISTILBERT_SIZES, num_labels=1)
    own = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}}
    rewrite(folder / "config.json", lambda config: config | own)
    return [("predict", [PAIRS], {}), ("rank", [QUERY, DOCUMENTS], {})]


def inference(parts: Path, folder: Path) -> list[Call]:
    """RoBERTa, three labels of a pair; Sigmoid by the oldest key. Softmax for a single text."""
    sizes, named = with_tokenizer(folder, "RobertaTokenizer"), labels("contradiction", "entailment", "neutral")
    raw(folder, "RobertaForSequenceClassification", **sizes, **named)
    own = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}
    rewrite(folder / "config.json", lambda config: config | own)
    return [
        ("predict", [PAIRS], {}), ("predict", [PAIRS[2]], {}), ("predict", [PAIRS], {"apply_softmax": True}),
        ("classify", [TEXTS], {}),
    ]  # fmt: skip


def topics(parts: Path, folder: Path) -> list[Call]:
    """ELECTRA, several labels can be true at once."""
    named = labels("sky", "sea", "land", "fire") | {"embedding_size": 6, "problem_type": "multi_label_classification"}
    raw(with_wordpiece(folder, model_max_length=20), "ElectraForSequenceClassification", **SIZES, **named)
    return [("classify", [TEXTS], {}), ("predict", [PAIRS], {})]


def one_label(parts: Path, folder: Path) -> list[Call]:
    """One label of a text: a sigmoid."""
    raw(with_wordpiece(folder, model_max_length=20), "BertForSequenceClassification", **SIZES, **labels("spam"))
    return [("classify", [TEXTS], {})]


def entities(parts: Path, folder: Path) -> list[Call]:
    """BERT; labels that begin a span, labels that continue it, and one of neither kind."""
    named = labels("MISC", "B-PER", "O", "I-PER", "B-LOC", "I-LOC")
    tagger(with_wordpiece(folder, model_max_length=20), "BertForTokenClassification", **SIZES, **named)
    return [("entities", [TEXTS[1:]], {})]


def entities_bytes(parts: Path, folder: Path) -> list[Call]:
    """RoBERTa, whose tokens begin with a space."""
    sizes = with_tokenizer(folder, "RobertaTokenizer")
    tagger(folder, "RobertaForTokenClassification", **sizes, **labels("O", "I-PER", "B-PER"))
    return [("entities", [TEXTS[1:]], {})]


def sparse(parts: Path, folder: Path) -> list[Call]:
    """BERT as SparseEncoder saves it: the largest over the tokens; a prompt for queries."""
    name = str(raw(with_wordpiece(parts / "t", model_max_length=14), "BertForMaskedLM", **SIZES))
    encoder = SparseEncoder(name, device="cpu", prompts={"query": "the clouds: "})
    encoder.save(str(folder), create_model_card=False)
    return [
        ("encode_sparse", [TEXTS], {}), ("encode_sparse", ["we lived"], {}),
        ("encode_sparse", [TEXTS], {"prompt_name": "query"}), ("encode_sparse", [TEXTS], {"max_active_dims": 5}),
    ]  # fmt: skip


def sparse_sum(parts: Path, folder: Path) -> list[Call]:
    """DistilBERT: the sum, the logarithm twice, at most seven numbers; the spelling of the first SparseEncoder."""
    name = str(raw(with_wordpiece(parts / "t"), "DistilBertForMaskedLM", **DISTILBERT_SIZES))
    chain = [Transformer(name, transformer_task="fill-mask"), SpladePooling("sum", "log1p_relu")]
    SparseEncoder(modules=chain, device="cpu", max_active_dims=7).save(str(folder), create_model_card=False)
    old = "sentence_transformers.sparse_encoder.models"
    types = [{"type": f"{old}.{name}.{name}"} for name in ("MLMTransformer", "SpladePooling")]
    rewrite(folder / "modules.json", lambda modules: [a | b for a, b in zip(modules, types, strict=True)])
    dump(folder / "sentence_bert_config.json", {"max_seq_length": 10, "do_lower_case": False})
    splade = {"pooling_strategy": "sum", "activation_function": "log1p_relu", "word_embedding_dimension": None}
    dump(folder / "1_SpladePooling/config.json", splade)
    return [("encode_sparse", [TEXTS], {}), ("encode_sparse", [TEXTS], {"max_active_dims": 40})]


def sparse_router(parts: Path, folder: Path) -> list[Call]:
    """A Router: a query's weights are stored as a tensor; the route without a task is the document's, BERT."""
    name = raw(with_wordpiece(parts / "t", model_max_length=14), "BertForMaskedLM", **SIZES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, model_max_length=7)
    table = SparseStaticEmbedding(tokenizer, torch.linspace(-0.25, 2, checkpoints.VOCAB).relu())
    modules = [Transformer(str(name), transformer_task="fill-mask"), SpladePooling("max")]
    router = Router.for_query_document([table], modules)
    encoder = SparseEncoder(modules=[router], device="cpu", prompts={"query": "the "})
    encoder.save(str(folder), create_model_card=False)
    calls = [(method, [TEXTS], {}) for method in ("encode_sparse", "encode_query", "encode_document")]
    return [*calls, ("encode_query", ["we lived we"], {}), ("encode_query", [TEXTS], {"prompt": ""}),
            ("encode_query", [TEXTS], {"max_active_dims": 3})]  # fmt: skip


FOLDERS = (
    reranker, reranker_bare, reranker_logits, inference, topics, one_label, entities, entities_bytes, sparse,
    sparse_sum, sparse_router,
)  # fmt: skip


# -- what the reference gives ------------------------------------------------------------------------------------


def gave(folder: Path, call: Call) -> Any:
    """Compute the reference's results from the files, as a user would."""
    method, arguments, options = call
    if method in ("predict", "rank"):
        model = CrossEncoder(str(folder), device="cpu")
        if method == "rank":
            return model.rank(*arguments, **options)
        return np.asarray(model.predict(*arguments, **options)).tolist()
    if method.startswith("encode"):
        encode = getattr(SparseEncoder(str(folder), device="cpu"), method.removesuffix("_sparse"))
        made = encode(*arguments, convert_to_sparse_tensor=False, **options).numpy()
        rows = [{"ids": row.nonzero()[0].tolist(), "weights": row[row != 0].tolist()} for row in np.atleast_2d(made)]
        return rows[0] if isinstance(arguments[0], str) else rows
    if method == "classify":
        pipe = transformers.pipeline("text-classification", model=str(folder))
        options = {"top_k": None, "truncation": True}
    else:
        pipe = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy="simple")
    found = [pipe(text, **options) for text in arguments[0]]
    return [[{key: np.asarray(value).item() for key, value in each.items()} for each in row] for row in found]


def with_answers(folder: Path, calls: list[Call]) -> dict[str, dict[str, Any]]:
    keys = ("method", "arguments", "options", "gave")
    return {str(i): dict(zip(keys, (*call, gave(folder, call)), strict=True)) for i, call in enumerate(calls)}


def compare(old: Path, new: Path) -> Iterator[str]:
    for folder in sorted(new.iterdir()):
        files = (each / folder.name / "calls.json" for each in (old, new))
        before, after = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        yield from compare_json(folder.name, before, after, tolerance=TOLERANCE)


if __name__ == "__main__":
    sys.exit(run(__doc__, "uses", FOLDERS, with_answers, compare))
