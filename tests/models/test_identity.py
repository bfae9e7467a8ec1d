"""An identity is the same for the same numbers and settings in other files, and another after each change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from checkpoints import change_json
from peaks import with_peak
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file
from test_weights import adapter

import minibert
from minibert.equations.sentences import normalized
from minibert.models.sentences.folder import TokenWeights
from minibert.models.sentences.late import Expansion, LateInteraction
from minibert.models.sentences.sentence_config import SentenceConfig

DENSE, IDS = REFERENCE / "sentences-dense", np.array([[1, 5, 9, 11, 3, 2, 7, 8, 20, 21, 30, 2]])
# a folder's identity may be stored for years: a change of this file that changes one of these breaks stored vectors
STORED = {
    "sentences-dense": "2716c770d4983bc29855cad397a178b105655cf2a99ddaa484712912804c699b",
    "uses-sparse-router": "0334ce630a1b3768a80b4a8f2f0231f0d395a39a31328e2a6bd48072834ec183",
    "late-pylate": "434927ac403e942a8849c55654b880d4d981fd15d02ee7056786fc6c3e179ed2",
    "heads/bert-classes": "efaad24ca8e5b2a8bffd3f4ef280bf45916937d93eba5c94fa205d047755a261",
}
MODEL = "model.safetensors"


def identity(folder: Path, **options: Any) -> str:
    with minibert.load_encoder(folder, **options) as encoder:
        return encoder.identity


@pytest.mark.parametrize("name", STORED)
def test_an_identity_stays_the_same_over_versions(name: str) -> None:
    assert identity(REFERENCE / name) == STORED[name]


PLAIN = ("bert", "gpt2", "t5", "deberta-v2", "modernbert")
EVERY_FAMILY = [
    *PLAIN, *(pytest.param(name, marks=pytest.mark.slow) for name in encoders.CONFIGS if name not in PLAIN),
]  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "modernbert"])
def test_neither_files_nor_formats_nor_ways_to_load_change_it(name: str, tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "first", name)
    config = json.loads((folder / "config.json").read_text())
    # numbers that float16 and bfloat16 have too
    numbers: dict[str, Any] = {name: np.sign(x) * np.float32(0.5) for name, x in load_file(folder / MODEL).items()}
    save_file(numbers, folder / MODEL)
    want = identity(folder)
    assert len(want) == 64 and int(want, 16)
    copied = shutil.copytree(folder, tmp_path / "another name")
    (copied / "README.md").write_text("a page")
    change_json(copied / "config.json", torch_dtype="float16", transformers_version="4.1", _name_or_path="x")
    assert identity(copied) == want
    prefix = {"bert": "bert.", "gpt2": "transformer.", "albert": "albert.", "modernbert": "model."}[name]
    checkpoints.write(copied, config, {prefix + each: x for each, x in numbers.items()}, {"format": "pt"}, shift=1)
    assert identity(copied) == want
    for kind in ("F16", "BF16", "F64"):
        checkpoints.write(copied, config, {each: checkpoints.as_stored(x, kind) for each, x in numbers.items()})
        for options in ({}, {"low_memory": True}, {"mmap": False}, {"mmap": True, "threads": 1}, {"dtype": "float64"}):
            assert identity(copied, **options) == want, (kind, options)
    (copied / MODEL).unlink()
    half = len(numbers) // 2
    checkpoints.write_shards(copied, config, [dict([*numbers.items()][:half]), dict([*numbers.items()][half:])])
    assert identity(copied) == want


@pytest.mark.parametrize("name", [*EVERY_FAMILY, pytest.param("clip", marks=pytest.mark.slow)])
def test_one_bit_of_each_parameter_changes_it(name: str, tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "model", name)
    tensors, seen = load_file(folder / MODEL), {identity(folder)}
    for path, numbers in tensors.items():
        changed = numbers.copy()
        changed.view(np.uint32).reshape(-1)[numbers.size // 2] ^= 1
        save_file(tensors | {path: changed}, folder / MODEL)
        seen.add(identity(folder))
    assert len(seen) == 1 + len(tensors)


def doubled(value: Any) -> Any:
    """Double a setting, and each number of a setting that is an object."""
    if isinstance(value, dict):
        return {key: each if isinstance(each, str) else doubled(each) for key, each in value.items()}
    return value and value * 2


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_each_setting_of_the_config_that_changes_a_number_changes_it(name: str, tmp_path: Path) -> None:
    folder, changes = encoders.write(tmp_path / "model", name), 0
    with minibert.load_encoder(folder) as encoder:
        before, want = encoder(IDS), encoder.identity
    settings = json.loads((folder / "config.json").read_text())
    more = {"rope_theta": 50, "norm_eps": 0.01, "layer_norm_eps": 0.01, "scale_attn_by_inverse_layer_idx": True}
    for key, value in (more | settings).items():
        for other in (not value,) if isinstance(value, bool) else (None, 7, doubled(value), "silu"):
            (folder / "config.json").write_text(json.dumps(settings | {key: other}))
            try:
                with minibert.load_encoder(folder) as encoder:
                    if not np.array_equal(encoder(IDS), before):
                        changes += 1
                        assert encoder.identity != want, key
            except (minibert.MinibertError, IndexError, ValueError):
                continue  # a size that does not fit the tensors
    assert changes >= 2


WEIGHTS = TokenWeights(np.ones(3, np.float32), lambda: minibert.load_encoder(DENSE).tokenizer, None)
OTHERS: dict[str, list[Any]] = {  # setting -> other values, each with an identity of its own
    "kind": ["", "MultiVectorEncoder"],
    "poolings": [("cls",), ("mean", "max"), ("max", "mean")],
    "picks": [np.sort, partial(np.sort, axis=0), partial(np.sort, axis=1)],
    "include_prompt": [False],
    "after": [(), (normalized,), (normalized, normalized)],
    "dim": [5],
    "longest": [7, None],
    "lengths": [{"query": 7}, {"document": 7}, {"query": 7, "document": 7}],
    "lower_case": [True],
    "prompts": [{"query": "q: ", "document": ""}, {"query": "q: ", "document": "d: "}, {"query": "", "x": "q: "}],
    "default_prompt": ["query", "document"],
    "similarity": ["dot", "euclidean"],
    "truncate_dim": [2, 3],
    "splade": [("sum", "relu"), ("max", "log1p_relu")],
    "query_weights": [WEIGHTS, WEIGHTS._replace(weights=np.ones(4)), WEIGHTS._replace(longest=3)],
    "default_task": ["query"],
    "max_active_dims": [3],
    "late": [
        LateInteraction(), LateInteraction(steps=(normalized,)), LateInteraction(expansion=Expansion(9, True)),
        LateInteraction(expansion=Expansion(9, False)), LateInteraction(expansion=Expansion(8, False)),
        LateInteraction(expansion=Expansion(9, False, "the")), LateInteraction(skipped=(".",)),
        LateInteraction(skipped=(".",), skips=("query",)), LateInteraction(prefixes=("[Q] ",)),
    ],
}  # fmt: skip
NO_VECTOR = {"static", "longest_from", "tokenizer_length", "activation"}  # two of them are tested with a head


def test_every_setting_of_sentence_vectors_is_tried() -> None:
    assert OTHERS.keys() | NO_VECTOR == {*SentenceConfig._fields}


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_of_sentence_vectors_changes_it(name: str) -> None:
    with minibert.load_encoder(DENSE) as encoder:
        seen = {encoder.identity, *(encoder.with_settings(**{name: other}).identity for other in OTHERS[name])}
    assert len(seen) == 1 + len(OTHERS[name])


def test_options_of_load_encoder_and_a_length_that_is_set_change_it() -> None:
    with minibert.load_encoder(DENSE) as encoder:
        plain = encoder.identity
        assert plain == identity(DENSE, similarity_fn_name="cosine") != identity(DENSE, similarity_fn_name="dot")
        encoder.max_seq_length = 9
        assert plain != encoder.identity == identity(DENSE, max_seq_length=9)


def with_negative(path: Path, names: Iterable[str], folder: Path) -> list[str]:
    """The identities of a folder with one tensor after the other negative; the file is as before then."""
    tensors, found = load_file(path), list[str]()
    for name in names:
        save_file(tensors | {name: -tensors[name]}, path)
        found.append(identity(folder))
    save_file(tensors, path)
    return found


def test_numbers_and_settings_of_the_modules_after_the_pooling_change_it(tmp_path: Path) -> None:
    folder = shutil.copytree(DENSE, tmp_path / "model")
    (path,) = folder.glob("*_Dense/model.safetensors")
    seen = {identity(folder), *with_negative(path, load_file(path), folder)}
    change_json(path.with_name("config.json"), activation_function="torch.nn.modules.activation.ReLU")
    seen.add(identity(folder))
    modules = folder / "modules.json"
    modules.write_text(json.dumps(json.loads(modules.read_text())[:-1]))
    assert len(seen | {identity(folder)}) == 3 + len(load_file(path))


def test_the_tokenizer_s_rules_change_it_and_how_its_file_is_written_does_not(tmp_path: Path) -> None:
    folder = encoders.write_with_words(tmp_path / "model", "bert")
    path, want = folder / "tokenizer.json", identity(folder)
    rules = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(rules, indent=4, sort_keys=True), "utf-8")
    assert identity(folder) == want
    seen, exchanged = {want}, {"the": "we", "we": "the"}
    model = rules["model"] | {"vocab": {exchanged.get(word, word): i for word, i in rules["model"]["vocab"].items()}}
    for key, value in {"normalizer": {"type": "Lowercase"}, "post_processor": None, "model": model}.items():
        path.write_text(json.dumps(rules | {key: value}), "utf-8")
        seen.add(identity(folder))
    change_json(folder / "tokenizer_config.json", truncation_side="left")
    seen.add(identity(folder))
    path.unlink()
    for vocabulary in folder.glob("vocab*"):
        vocabulary.unlink()
    seen.add(identity(folder))  # ids work without a tokenizer
    assert len(seen) == 6


def test_an_adapter_changes_it_and_a_merged_model_has_the_merged_numbers(tmp_path: Path) -> None:
    plain, merged = (encoders.write(tmp_path / name, "bert") for name in ("plain", "merged"))
    found = [identity(adapter(encoders.write(tmp_path / f"a{alpha}", "bert"), lora_alpha=alpha)) for alpha in (6, 7, 0)]
    assert len({identity(plain), *found[:2]}) == 3 and found[2] == identity(plain)
    with minibert.load_encoder(tmp_path / "a6") as encoder:
        name = "encoder.layer.0.attention.self.query"
        tensors = load_file(merged / MODEL) | {f"{name}.weight": np.ascontiguousarray(encoder[name].weight)}
    save_file(tensors, merged / MODEL)
    assert identity(merged) == found[0]


def test_a_head_counts_if_the_folder_is_for_its_results(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "heads" / "bert-classes", tmp_path / "model")
    seen = {identity(folder), *with_negative(folder / MODEL, ("classifier.weight", "classifier.bias"), folder)}
    change_json(folder / "config.json", problem_type="multi_label_classification")
    assert len(seen | {identity(folder)}) == 4


def test_the_numbers_are_read_once_and_need_no_copy(tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "model", "bert", vocab_size=60_000)
    with minibert.load_encoder(folder, mmap=True, threads=1) as encoder:
        first, most = with_peak(lambda: encoder.identity)
        assert most < 60_000 * encoders.DIM * 4 / 2
        assert encoder.identity == first == encoder.with_settings().identity
        assert encoder.with_settings(truncate_dim=1)._digests is encoder._digests
