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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from check import ROOT, compare_json, make_or_check, parser_of, seeded
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from sentences import SIZES, checkpoints, fill, make_folders, rewrite, with_wordpiece
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
SPARSE = {"encode_sparse": "encode", "encode_query": "encode_query", "encode_document": "encode_document"}
Call = tuple[str, list[Any], dict[str, Any]]


def labels(*names: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def save(folder: Path, model: Any, sharp: bool = False) -> Path:
    fill(model)
    if sharp:  # so that most labels occur, and some of them more than once in a row
        made = SHARP * seeded.values(tuple(model.classifier.weight.shape), salt=5)
        model.classifier.weight.data.copy_(torch.from_numpy(made))
        model.classifier.bias.data.zero_()
    model.save_pretrained(folder)
    return folder


def with_tokenizer(folder: Path, name: str) -> tuple[Path, int]:
    """A tokenizer of a class, and its number of tokens."""
    write_tokenizer(folder, name, {"tokenizer_config.json": {"model_max_length": 20}})
    return folder, len(vocabulary(BASES[name]))


# -- the folders -------------------------------------------------------------------------------------------------


def reranker(parts: Path, folder: Path) -> list[Call]:
    """BERT, one label, as CrossEncoder saves it: Sigmoid by its name, a prompt, truncated at 14 tokens."""
    config = transformers.BertConfig(**SIZES, num_labels=1)
    raw = save(with_wordpiece(parts / "t", model_max_length=14), transformers.BertForSequenceClassification(config))
    CrossEncoder(str(raw), device="cpu", prompts={"ask": "the clouds: "}).save(str(folder), create_model_card=False)
    return [
        ("predict", [PAIRS], {}),
        ("predict", [PAIRS[0]], {}),
        ("predict", [[]], {}),
        ("predict", [PAIRS], {"prompt_name": "ask"}),
        ("predict", [PAIRS], {"prompt": "we "}),
        ("predict", [PAIRS], {"apply_softmax": True}),
        ("rank", [QUERY, DOCUMENTS], {}),
        ("rank", [QUERY, DOCUMENTS], {"top_k": 3, "return_documents": True}),
        ("rank", [QUERY, []], {}),
    ]


def reranker_bare(parts: Path, folder: Path) -> list[Call]:
    """XLM-RoBERTa as transformers saves it: two separators in a pair, and Sigmoid by default."""
    _, size = with_tokenizer(folder, "XLMRobertaTokenizer")
    config = transformers.XLMRobertaConfig(**ROBERTA_SIZES | {"vocab_size": size}, num_labels=1)
    save(folder, transformers.XLMRobertaForSequenceClassification(config))
    return [("predict", [PAIRS], {}), ("rank", [QUERY, DOCUMENTS], {"return_documents": True})]


def reranker_logits(parts: Path, folder: Path) -> list[Call]:
    """DistilBERT, no token types; Identity in config.json, as in folders of the previous year."""
    config = transformers.DistilBertConfig(**DISTILBERT_SIZES, num_labels=1)
    save(with_wordpiece(folder), transformers.DistilBertForSequenceClassification(config))
    own = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}}
    rewrite(folder / "config.json", lambda config: config | own)
    return [("predict", [PAIRS], {}), ("rank", [QUERY, DOCUMENTS], {})]


def inference(parts: Path, folder: Path) -> list[Call]:
    """RoBERTa, three labels of a pair; Sigmoid by the oldest key. Softmax for a single text."""
    _, size = with_tokenizer(folder, "RobertaTokenizer")
    named = labels("contradiction", "entailment", "neutral")
    config = transformers.RobertaConfig(**ROBERTA_SIZES | {"vocab_size": size}, **named)
    save(folder, transformers.RobertaForSequenceClassification(config))
    own = {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}
    rewrite(folder / "config.json", lambda config: config | own)
    return [
        ("predict", [PAIRS], {}),
        ("predict", [PAIRS[2]], {}),
        ("predict", [PAIRS], {"apply_softmax": True}),
        ("classify", [TEXTS], {}),
    ]


def topics(parts: Path, folder: Path) -> list[Call]:
    """ELECTRA, several labels can be true at once."""
    named = labels("sky", "sea", "land", "fire")
    config = transformers.ElectraConfig(**SIZES, embedding_size=6, problem_type="multi_label_classification", **named)
    save(with_wordpiece(folder, model_max_length=20), transformers.ElectraForSequenceClassification(config))
    return [("classify", [TEXTS], {}), ("predict", [PAIRS], {})]


def one_label(parts: Path, folder: Path) -> list[Call]:
    """One label of a text: a sigmoid."""
    config = transformers.BertConfig(**SIZES, **labels("spam"))
    save(with_wordpiece(folder, model_max_length=20), transformers.BertForSequenceClassification(config))
    return [("classify", [TEXTS], {})]


def entities(parts: Path, folder: Path) -> list[Call]:
    """BERT; labels that begin a span, labels that continue it, and one of neither kind."""
    config = transformers.BertConfig(**SIZES, **labels("MISC", "B-PER", "O", "I-PER", "B-LOC", "I-LOC"))
    save(with_wordpiece(folder, model_max_length=20), transformers.BertForTokenClassification(config), sharp=True)
    return [("entities", [TEXTS[1:]], {})]


def entities_bytes(parts: Path, folder: Path) -> list[Call]:
    """RoBERTa, whose tokens begin with a space."""
    _, size = with_tokenizer(folder, "RobertaTokenizer")
    config = transformers.RobertaConfig(**ROBERTA_SIZES | {"vocab_size": size}, **labels("O", "I-PER", "B-PER"))
    save(folder, transformers.RobertaForTokenClassification(config), sharp=True)
    return [("entities", [TEXTS[1:]], {})]


def sparse(parts: Path, folder: Path) -> list[Call]:
    """BERT as SparseEncoder saves it: the largest over the tokens; a prompt for queries."""
    raw = save(
        with_wordpiece(parts / "t", model_max_length=14), transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    )
    SparseEncoder(str(raw), device="cpu", prompts={"query": "the clouds: "}).save(str(folder), create_model_card=False)
    return [
        ("encode_sparse", [TEXTS], {}),
        ("encode_sparse", ["we lived"], {}),
        ("encode_sparse", [TEXTS], {"prompt_name": "query"}),
        ("encode_sparse", [TEXTS], {"max_active_dims": 5}),
    ]


def sparse_sum(parts: Path, folder: Path) -> list[Call]:
    """DistilBERT: the sum, the logarithm twice, at most seven numbers; the spelling of the first SparseEncoder."""
    config = transformers.DistilBertConfig(**DISTILBERT_SIZES)
    raw = save(with_wordpiece(parts / "t"), transformers.DistilBertForMaskedLM(config))
    chain = [Transformer(str(raw), transformer_task="fill-mask"), SpladePooling("sum", "log1p_relu")]
    SparseEncoder(modules=chain, device="cpu", max_active_dims=7).save(str(folder), create_model_card=False)
    types = ("MLMTransformer", "SpladePooling")
    rewrite(
        folder / "modules.json",
        lambda modules: [
            module | {"type": f"sentence_transformers.sparse_encoder.models.{name}.{name}"}
            for module, name in zip(modules, types, strict=True)
        ],
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 10, "do_lower_case": False}))
    splade = {"pooling_strategy": "sum", "activation_function": "log1p_relu", "word_embedding_dimension": None}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(splade), encoding="utf-8")
    return [("encode_sparse", [TEXTS], {}), ("encode_sparse", [TEXTS], {"max_active_dims": 40})]


def routed(model: Any, parts: Path, folder: Path, **options: Any) -> None:
    """A Router as SparseEncoder saves it: queries are a table of weights, documents go through the model."""
    raw = save(with_wordpiece(parts / "t", model_max_length=14), model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(raw, model_max_length=7)
    table = SparseStaticEmbedding(tokenizer, torch.linspace(-0.25, 2, checkpoints.VOCAB).relu())
    modules = [Transformer(str(raw), transformer_task="fill-mask"), SpladePooling("max")]
    router = Router.for_query_document([table], modules, **options)
    SparseEncoder(modules=[router], device="cpu", prompts={"query": "the "}).save(str(folder), create_model_card=False)


def sparse_router(parts: Path, folder: Path) -> list[Call]:
    """A query's weights are stored as a tensor; the route without a task is the document's."""
    routed(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)), parts, folder)
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
    if method in SPARSE:
        encode = getattr(SparseEncoder(str(folder), device="cpu"), SPARSE[method])
        made = encode(*arguments, convert_to_sparse_tensor=False, **options).numpy()
        rows = [{"ids": row.nonzero()[0].tolist(), "weights": row[row != 0].tolist()} for row in np.atleast_2d(made)]
        return rows[0] if isinstance(arguments[0], str) else rows
    if method == "classify":
        pipe, options = (
            transformers.pipeline("text-classification", model=str(folder)),
            {"top_k": None, "truncation": True},
        )
    else:
        pipe = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy="simple")
    return [[{key: plain(value) for key, value in each.items()} for each in pipe(text, **options)]
            for text in arguments[0]]  # fmt: skip


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def with_answers(folder: Path, calls: list[Call]) -> dict[str, dict[str, Any]]:
    keys = ("method", "arguments", "options", "gave")
    return {str(i): dict(zip(keys, (*call, gave(folder, call)), strict=True)) for i, call in enumerate(calls)}


def compare(old: Path, new: Path) -> Iterator[str]:
    for folder in sorted(new.iterdir()):
        files = (each / folder.name / "calls.json" for each in (old, new))
        before, after = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        yield from compare_json(folder.name, before, after, tolerance=TOLERANCE)


def main() -> int:
    make = partial(make_folders, prefix="uses", builders=FOLDERS, finish=with_answers)
    return make_or_check(parser_of(__doc__).parse_args().check, ROOT / "tests" / "reference", make, compare)


if __name__ == "__main__":
    sys.exit(main())
