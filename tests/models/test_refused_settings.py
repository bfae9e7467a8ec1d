"""A setting that is not computed here is refused by its name, and no folder is taken for another kind of model.

Every key of every settings file, missing or with a value of every other kind, is an error with words, or a layer:
nothing but MinibertError comes out of loading, nothing but it, ValueError, TypeError and IndexError of what is loaded.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from checkpoints import change_json, wordpiece_json
from reference_files import REFERENCE, changed

import minibert
from minibert.errors import CheckpointError, MinibertError, TokenizerError
from minibert.families.parts.config import Config
from minibert.families.rows import BLOCKS, FAMILIES
from minibert.show.info import info

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
          for n, k in ((4, 3), (0, 0), (0, 2)))],
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
LEAVES = ["/etc", "..", "1_Pooling/../../other", "C:x", "\\\\server\\share", "a\\..\\b", "a\0b", 3]  # no folder inside
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
            *((with_module(place, path=path), "has the path") for place in range(4) for path in LEAVES),
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
                structure(query=QUERY), structure(query=[7]), structure(query=[SPLADE]),
                lambda data: structure(document=["../a"])(types(**{"../a": data["types"][MODEL]})(data)),
                structure(query=[QUERY, SPLADE]), structure(document=[]), types(**{QUERY: f"mine.{QUERY[8:]}"}),
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
    with pytest.raises(CheckpointError) as refused:
        changed(tmp_path, name, file, change)
    message = str(refused.value)
    for word in said or [rf"\b{key}\b" for key in change]:
        assert re.search(word, message), message
    for value in () if said else change.values():
        assert isinstance(value, list | dict) or repr(value) in message or "not known here" in message, message


# -- odd values of every key -------------------------------------------------------------------------------------------

# what only sentence vectors are read from
SENTENCE_FILES = {MODULES, SETTINGS, SENTENCES, POOLING, DENSE, NORMALIZE, "2_Normalize/config.json"}
MISSING = object()
DEEP = json.loads("[" * 201 + "]" * 201)
ODD = (
    MISSING, None, True, False, 0, -1, 1, 3, 2.5, 1e39, 10**9, 10**30, -(10**30), float("nan"), float("inf"),
    -float("inf"), "", "false", "x", "mean", [], [1], ["x"], [[]], {}, {"x": 1}, {"x": {"x": []}},
    {"factor": float("nan")}, DEEP,
)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.1, beta_fast=32,
            beta_slow=1, mscale=1.0, mscale_all_dim=0.5, truncate=True, rope_theta=100.0,
            partial_rotary_factor=1.0)  # fmt: skip
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)  # fmt: skip
# more than the cases' own files have: name -> case, changes of config.json, other files
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, {}),
    "yarn": ("llama", {"rope_parameters": YARN}, {}), "llama3": ("llama", {"rope_scaling": LLAMA3}, {}),
    "tokenizer": ("bert", {"tokenizer_class": "BertTokenizer"}, {
        TOKENIZER: {
            "tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None, "model_max_length": 8,
            "tokenize_chinese_chars": True, "cls_token": "[CLS]", "sep_token": {"content": "[SEP]", "lstrip": False},
            "pad_token": "[PAD]", "padding_side": "right", "truncation_side": "right", "add_prefix_space": False,
            "added_tokens_decoder": {"0": {"content": "[PAD]", "special": True, "lstrip": False, "rstrip": False}},
            "additional_special_tokens": ["[X]"], "extra_special_tokens": {"y": "[Y]"},
            "clean_up_tokenization_spaces": True},
        "special_tokens_map.json": {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": True}},
        "added_tokens.json": {"[Z]": 9}, "generation_config.json": {"pad_token_id": 0}}),
}  # fmt: skip
IDS = [[1, 2, 3, 1]]
# what Python says where nobody has looked at a value first
RAW = re.compile(
    r"unhashable|not iterable|not supported between|object is not|unexpected keyword|must be real|cannot convert|"
    r"'NoneType'|division by zero|unsupported operand|object cannot be|has no len|not subscriptable|object of type|"
    r"too large to|invalid literal|could not convert|required positional|attribute|sequence item|must be str|"
    r"out of bounds"
)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*above, key))


def with_odd(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest or odd is not MISSING:
        copy[key] = with_odd(value.get(key, {}) if isinstance(value, dict) else value[key], tuple(rest), odd)
    elif isinstance(value, list) or key in value:
        del copy[key]
    return copy


def judged(what: str, error: Exception, loading: bool) -> list[str]:
    foreseen = MinibertError if loading else (MinibertError, ValueError, TypeError, IndexError)
    raw = RAW.search(str(error)) and not isinstance(error, TokenizerError)  # which quotes its library beside the file
    if not isinstance(error, foreseen) or raw or not str(error):
        return [f"{what}: {type(error).__name__}: {error}"[:300]]
    return []


def used(folder: Path, what: str, layers: bool = True) -> list[str]:
    wrong: list[str] = []

    def attempt(loading: bool, do: Any, *args: Any) -> Any:
        try:
            return do(*args)
        except Exception as error:  # noqa: BLE001
            wrong.extend(judged(f"{what} {getattr(do, '__name__', do)}", error, loading))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*'similarity_fn_name' is")  # sentence-transformers passes over it too
        for side in (None, "decoder") if layers else ():
            try:
                layer = minibert.load(folder, side=side)
            except ValueError:
                continue  # no such side
            except Exception as error:  # noqa: BLE001
                wrong += judged(f"{what} load", error, True)
                continue
            attempt(True, getattr, layer, "attention_position")
            attempt(True, lambda layer=layer: list(info(layer)))
            attempt(False, layer, IDS)
            attempt(False, layer.embed, ["we lived"])
        if (encoder := attempt(True, minibert.load_encoder, folder)) is not None:
            attempt(False, encoder, IDS)
            attempt(False, encoder.encode, ["we lived", "a"])
            attempt(False, encoder.encode_query, "we")
    return wrong


def config_of(folder: Path) -> Path:
    places = (".", "0_Transformer", "document_0_Transformer")  # the last: a Router's
    return next(path for place in places if (path := folder / place / "config.json").exists())


def keys_of(folder: Path) -> list[str]:
    """Every key of a folder's config.json that something here asks for, whether it is in the file or not."""
    with mock.patch.object(Config, "__getitem__", autospec=True, side_effect=Config.__getitem__) as get:
        used(folder, "")
    asked = {call.args[1] for call in get.call_args_list}
    data = json.loads(config_of(folder).read_text(encoding="utf-8"))
    return sorted(asked | {"model_type", "architectures"} | {key for key in data if isinstance(data[key], dict)})


def prepared(name: str, folder: Path) -> Path:
    case, changes, files = VARIANTS.get(name, (name, {}, {}))
    shutil.copytree(REFERENCE / case, folder)
    path = config_of(folder)
    change_json(path, **changes)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    if not (path.parent / "tokenizer.json").exists():
        (path.parent / "tokenizer.json").write_text(wordpiece_json(), encoding="utf-8")
    return folder


def every_change(folder: Path) -> list[tuple[str, tuple[Any, ...], Any]]:
    found: list[tuple[str, tuple[Any, ...], Any]] = []
    files = [path for path in folder.rglob("*.json") if path.name not in ("tokenizer.json", "case.json", "calls.json")]
    for path in sorted(files):
        spots = [(), *places(json.loads(path.read_text(encoding="utf-8")))]
        if path == config_of(folder):
            keys = keys_of(folder)
            spots = [spot for spot in spots if not spot or spot[0] in keys]
            spots += [(key,) for key in keys if (key,) not in spots]
        found += [(str(path.relative_to(folder)), spot, odd) for spot in spots for odd in ODD]
    return found


def outcome(folder: Path, changes: list[tuple[str, tuple[Any, ...], Any]]) -> list[str]:
    wrong = []
    for name, place, odd in changes:
        before = (path := folder / name).read_text(encoding="utf-8")
        if place or odd is not MISSING:
            path.write_text(json.dumps(with_odd(json.loads(before), place, odd)), encoding="utf-8")
        else:
            path.unlink()
        said = "missing" if odd is MISSING else repr(odd)[:40]
        wrong += used(folder, f"{folder.name}/{name} {'.'.join(map(str, place))} = {said}:", name not in SENTENCE_FILES)
        path.write_text(before, encoding="utf-8")
    return wrong


# a case for each model_type, and the folders that have more files
CASES = sorted(path.parent for path in REFERENCE.glob("*/case.json"))
BY_TYPE = {json.loads((case / CONFIG).read_text())["model_type"]: case.name for case in CASES}
WHOLE = [*BY_TYPE.values(), *sorted(path.name for path in REFERENCE.glob("sentences-*")), *VARIANTS]
FEW = ("bert", "gpt2", "t5-encoder", "deberta-v2", "xlnet", "yarn", "llama3", "sentences-dense", "tokenizer")
EVERY = 5  # no divisor of the number of odd values
SAMPLE = 12  # changes of each of the few, others for each of them
ROOM = 4 << 30  # far more than any of them takes: 0.1 GiB


@pytest.fixture
def bounded() -> Iterator[None]:
    """A call that asks for memory without end, since a settings file says so, fails alone and not with the machine."""
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", WHOLE)
def test_odd_values_of_every_key_are_foreseen(name: str, tmp_path: Path) -> None:
    """Each fifth value, others for the next key and the next folder: a key has five or six of them in each."""
    folder = prepared(name, tmp_path / name)
    changes = every_change(folder)
    assert len(changes) > 200
    assert outcome(folder, changes[WHOLE.index(name) % EVERY :: EVERY]) == []


@pytest.mark.parametrize("name", FEW)
def test_some_odd_values_are_foreseen(name: str, tmp_path: Path) -> None:
    folder = prepared(name, tmp_path / name)
    assert used(folder, "unchanged") == []
    assert outcome(folder, random.Random(name).sample(every_change(folder), SAMPLE)) == []


FLAGS = {
    "bert": ("is_decoder", "tie_word_embeddings", "add_cross_attention"), "ernie": ("use_task_id",),
    "gpt2": ("scale_attn_weights", "scale_attn_by_inverse_layer_idx"), "xlm": ("use_lang_emb",),
    "deberta-v2": ("position_biased_input", "relative_attention"), "marian-encoder": ("scale_embedding",),
    "modernbert": ("norm_bias",), "yarn": ("rope_parameters.truncate",),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str, tmp_path: Path) -> None:
    """A value that Python treats as true, like the text "false" or NaN, would silently make another layer."""
    folder = prepared(name, tmp_path / name)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for flag, odd in product(FLAGS[name], ("false", "true", 0, 1, 1.0, float("nan"), [])):
        text = json.dumps(with_odd(config, tuple(flag.split(".")), odd))
        (folder / CONFIG).write_text(text, encoding="utf-8")
        said = rf"'{flag.rpartition('.')[2]}' must be (true or false|False for bert), found "
        with pytest.raises(CheckpointError, match=said):
            minibert.load(folder).attention_position, minibert.load_encoder(folder)


def test_what_is_not_foreseen_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BY_TYPE.keys() == set(FAMILIES) >= set(BLOCKS), "every family is there"
    folder = prepared("bert", tmp_path / "bert")
    for error in (OverflowError("int too large to convert"), TypeError("unhashable type: 'list'"), KeyError("x")):
        monkeypatch.setattr(Config, "flag", mock.Mock(side_effect=error))
        assert len(used(folder, "planted")) >= 2
