"""A setting that is not computed here is refused by its name, and no folder is taken for another kind of model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from reference_files import changed

import minibert

CONFIG, MODULES, SETTINGS = "config.json", "modules.json", "sentence_bert_config.json"
SENTENCES, TOKENIZER, ROUTES = "config_sentence_transformers.json", "tokenizer_config.json", "router_config.json"
POOLING, DENSE, NORMALIZE = "1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"
RERANKER, SPARSE, ROUTER, DENSE_MODEL = "uses-reranker", "uses-sparse", "uses-sparse-router", "sentences-dense"
CAUSAL, LAYERS, FULL, SLIDING = "is_causal", "layer_types", "full_attention", "sliding_attention"


def each(key: str, *values: Any) -> list[dict[str, Any]]:
    return [{key: value} for value in values]


# case of tests/reference/encoder -> settings of its config.json. The error has key and value, or the words beside them
MODELS: dict[str, list[Any]] = {
    "bert": [
        {"add_cross_attention": True}, {"pruned_heads": {"0": [1]}}, {"position_embedding_type": "relative_key"},
        {"hidden_act": "gelu_11"}, *each("num_attention_heads", 5, 0), {"intermediate_size": None}, {CAUSAL: True},
        ({"intermediate_size": 24}, r"intermediate\.dense\.weight"),
        ({"num_hidden_layers": 3}, r"encoder\.layer\.2"), ({"num_hidden_layers": 1}, r"encoder\.layer\.1")],
    "bert-causal": [{CAUSAL: None}], "gpt2": [{"activation_function": None}], "distilbert": [{"activation": 3}],
    "qwen3": [
        *each(LAYERS, [FULL, "mamba"], [FULL], [FULL] * 3), ({LAYERS: [FULL, SLIDING]}, "use_sliding_window"),
        {"num_key_value_heads": 3}, ({"attention_bias": True}, "q_proj"),
        *(({"num_attention_heads": n, "num_key_value_heads": k}, rf"\b{n}\b.*\b{k}\b")
          for n, k in ((4, 3), (0, 0), (0, 2))),
        # a text's vectors would change with the texts around it
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'")],
    "mistral": [{"sliding_window": "all"}],
    "ministral3": [({"rope_parameters": {"rope_theta": 1e4}}, "'llama_4_scaling_beta' must be a number >= 0")],
    "modernbert": [{"sliding_window": None}, {CAUSAL: True}, ({"norm_bias": True}, r"norm\.bias")],
    "llama": [{CAUSAL: "false"}], "deberta-v2": [{"conv_kernel_size": 3}],
    # layers share weights: none is missing
    "albert": [({"num_hidden_layers": 10**9}, "1,000"), {"num_hidden_groups": 3}],
    "gemma3_text": [{"attn_logit_softcapping": 50.0}, {"query_pre_attn_scalar": 0}],
    "ultrabert": [
        *each("attention_windows", [1, 2], 128), ({"rope_parameters": None, "rope_theta": 10000.0}, "'rope_theta'"),
        ({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, "one set per layer type")],
}  # fmt: skip


def with_module(place: int, **entry: Any) -> Any:
    return lambda modules: [module | (entry if i == place else {}) for i, module in enumerate(modules)]


def with_another(kind: str) -> Any:
    entry = {"idx": 1, "name": "1", "path": "1_Other", "type": f"sentence_transformers.{kind}"}
    return lambda modules: [modules[0], entry, *modules[1:]], kind


ONE = {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
ST, NAMES, EXPECTED = "sentence_transformers.x.", "module_input_name", "expected a Transformer, a Pooling, or a Sta"
WORKS_ON, NO_FLAG = [*each(NAMES, "", None), *each("module_output_name", "", False, 0)], ("false", 2, 1.0)
EMPTY: list[Any] = ["", False, 0, []]
EXPANSION = {"strategy": "fixed", "length": 12}
QUERY, MODEL, SPLADE = "query_0_SparseStaticEmbedding", "document_0_Transformer", "document_1_SpladePooling"


def parameters(**change: Any) -> Any:
    return lambda data: data | {"parameters": {k: v for k, v in (data["parameters"] | change).items() if v != "absent"}}


def structure(**routes: Any) -> Any:
    return lambda data: data | {"structure": data["structure"] | routes}


def types(**kinds: Any) -> Any:
    return lambda data: data | {"types": data["types"] | kinds}


# folder of tests/reference -> file -> its settings, or all that is in it made of what was
FOLDERS: dict[str, dict[str, list[Any]]] = {
    DENSE_MODEL: {
        MODULES: [
            (with_module(3, type="sentence_transformers.models.WordWeights"), "sentence_tr"),
            *map(with_another, (
                "models.CNN", "models.LSTM", "models.WeightedLayerPooling",  # of older files; then of today's
                "sentence_transformer.modules.cnn.CNN", "sentence_transformer.modules.lstm.LSTM",
                "sentence_transformer.modules.weighted_layer_pooling.WeightedLayerPooling")),
            (with_module(3, type="my_package.Normalize"), "'my_package.Normalize'"),
            (with_module(0, type="sentence_transformers.models.Router"), "Router', .*; save one"),
            (lambda modules: modules[:1], "Transformer, a Pooling|Transformer.*Pooling"),
            (lambda modules: modules[1:], "Pooling, Dense, Normalize"),
            (lambda modules: [*modules, modules[1]], EXPECTED), (lambda modules: [], "lists nothing")],
        POOLING: [
            *(({"pooling_mode": odd}, rf"pooling {shown} is not known; .* cls")
              for odd, shown in (("median", r"\['median'\]"), ([], r"\[\]"))), {"pooling_mode_attention": False},
            {"include_promt": False}, ({"embedding_dimension": 9}, "9 .*8"),
            *each("include_prompt", *NO_FLAG), *each("pooling_mode_cls_token", *NO_FLAG)],
        DENSE: [
            ({"in_features": 9}, "Dense .*9 .*6.* 8"), ({"out_features": 7}, r"'linear.weight' .*\(6, 8\).*\(7"),
            {"activation_function": "os.system"}, ({"bias": False}, "linear.bias"), {"use_residuals": True},
            {NAMES: "token_embeddings"}, *each("bias", *NO_FLAG), *each("use_residual", *NO_FLAG), *WORKS_ON],
        NORMALIZE: [{"module_output_name": "other"}, {"p": 1}, *WORKS_ON],
        SETTINGS: [
            {"model_args": 5}, *each("max_seq_length", float("inf"), 8.5, "a"), {"transformer_task": "fill-mask"},
            ({"query_expansion": {"length": 32}}, "'query_expansion' .*{'length': 3"), {"something": 1},
            ({"model_args": {"dtype": "torch.half"}}, "'model_args' .*'dtype'"), *each("do_lower_case", *NO_FLAG),
            ({"tokenizer_args": {"model_max_length": 0}}, f"model_max_length .*{SETTINGS}"),
            ({"tokenizer_args": {"model_max_length": None}}, "model_max_length .*None")],
        SENTENCES: [
            ({"truncate_dim": 0}, f"truncate_dim .*{SENTENCES}"), {"default_prompt_name": "x"}, {"prompts": {"a": 1}},
            ({"model_type": "WordEncoder"}, "WordEncoder"), ({"model_type": "SparseEncoder"}, "Pooling'.*SparseEnco")]},
    RERANKER: {
        MODULES: [
            (lambda _: [], "lists nothing; expected a Transformer alone$"),
            (lambda _: [ONE | {"type": f"{ST}logit_score.LogitScore"}], "take a reranker with a"),
            (lambda _: [ONE, ONE | {"type": f"{ST}dense.Dense"}], "names '.*Dense', but only Trans"),
            (lambda _: [ONE, ONE], "lists Transformer, Transformer; expected a Transformer alone$")],
        SETTINGS: [
            {"transformer_task": "feature-extraction"}, {"module_output_name": "x"},
            ({"modality_config": {"text": 1}}, "modal.* by 1"), ({"modality_config": {"image": {}}}, "modal.* by None"),
            ({"modality_config": {"text": 1, "message": 1}}, "modal.*message")],
        SENTENCES: [({"activation_fn": 3}, " 3")]},
    SPARSE: {
        MODULES: [(lambda _: [], "SpladePooling")], SETTINGS: [{"transformer_task": "feature-extraction"}],
        "1_SpladePooling/config.json": [
            ({"pooling_strategy": "mean"}, "'max'.*'sum'.*'mean'"), ({"activation_function": None}, "'log1p_relu'"),
            {"top": 1}]},
    ROUTER: {
        ROUTES: [
            *((change, "must have the routes query, SparseStaticEmbedding alone, and document, a model") for change in (
                lambda data: {}, lambda data: data | {"structure": {"query": [QUERY]}},
                lambda data: data | {"types": []} | {"structure": [1]}, structure(image=[MODEL]), structure(query=[]),
                structure(query=QUERY), structure(query=[7]), structure(query=["../other"]), structure(query=[SPLADE]),
                structure(query=[QUERY, SPLADE]), structure(document=["../other"]),
                lambda data: structure(document=["../a"])(types(**{"../a": data["types"][MODEL]})(data)),
                types(**{QUERY: f"mine.{QUERY[8:]}"}),
                *(parameters(default_route=odd) for odd in EMPTY),
                *(lambda data, odd=odd: data | {"parameters": odd} for odd in (*EMPTY, None)))),
            (structure(document=[QUERY]), "SparseStaticEmbedding'"),
            (structure(document=[MODEL]), "Transformer.*SpladePooling"), (types(**{MODEL: "os.path"}), "'os.path'"),
            (parameters(default_route="text"), "'default_route'.*'text'"),
            (parameters(route_mappings={"('a', 'text')": "query"}), "'default_route'"),
            (parameters(default_route=None, allow_empty_key=False), "'default_route'")],
        f"{QUERY}/{TOKENIZER}": each("model_max_length", True, False, 0, "", 1.5),
        f"{QUERY}/{CONFIG}": [({"path": "idf.json"}, "config.json .*'path'.*frozen")],
        SENTENCES: [({"model_type": "SentenceTransformer"}, "Router', .* save one of its")]},
    "late-fixed": {
        SETTINGS: [
            *(({"query_expansion": EXPANSION | odd}, "fixed or min, a length >= 1, a token or none, and attend true or")
              for odd in ({"strategy": "most"}, *each("length", True, 0), {"more": 1}, {"token": ""}, {"attend": 1})),
            ({"query_expansion": EXPANSION | {"length": 40}}, r"\b40 .*32\b"),
            ({"query_length": 5}, "12 .*query_length .*5")],
        "1_Dense/config.json": [{"module_output_name": ""}, ({NAMES: "sentence_embedding"}, "'token_embeddings'")],
        "2_MultiVectorMask/config.json": [{"skiplist_words": "a"}, {"keep_only_token_ids": [5]}],
        NORMALIZE: [({NAMES: None}, "'token_embeddings'")],
        MODULES: [(lambda modules: [*modules, modules[2]], "MultiVectorMask")]},
    "late-least": {MODULES: [
        (lambda modules: [*modules, modules[3] | {"type": f"{ST}TokenPooling"}], "TokenPooling'.*MultiVectorMask")]},
    "late-pylate": {
        SENTENCES: [({"query_prefix": 5}, "found 5"), {"prompts": {"query": 5}}, {"do_query_expansion": "no"}],
        MODULES: [(with_module(1, type="my.Dense"), "'my.Dense'")]},
    "late-bare": {MODULES: [
        (lambda modules: [*modules, modules[0]], "expected a Transformer, then any number of Dense")]},
    "late-stanford": {"artifact.metadata": [{"attend_to_mask_tokens": "false"}]},
}  # fmt: skip
ROWS = [(f"encoder/{name}", CONFIG, row) for name, rows in MODELS.items() for row in rows]
ROWS += [(name, file, row) for name, files in FOLDERS.items() for file, rows in files.items() for row in rows]


@pytest.mark.parametrize(("name", "file", "row"), ROWS)
def test_what_is_not_computed_here_is_refused_by_name(tmp_path: Path, name: str, file: str, row: Any) -> None:
    change, *said = row if isinstance(row, tuple) else (row,)
    with pytest.raises(minibert.CheckpointError) as refused:
        changed(tmp_path, name, file, change)
    message = str(refused.value)
    for word in said or [rf"\b{key}\b" for key in change]:
        assert re.search(word, message), message
    for value in () if said else change.values():
        assert isinstance(value, list | dict) or repr(value) in message or "not known here" in message, message


LEAVES = ["/etc", "..", "1_Pooling/../../other", "C:x", "\\\\server\\share", "a\\..\\b", "a\0b", 3]


@pytest.mark.parametrize("path", LEAVES)
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, path: Any) -> None:
    for place in range(4):
        with pytest.raises(minibert.CheckpointError):
            changed(tmp_path, DENSE_MODEL, MODULES, with_module(place, path=path))
