"""Every key of every settings file, missing or with a value of every other kind: an error with words, or a layer.

Nothing but MinibertError comes out of loading, nothing but it, ValueError, TypeError and IndexError of what is loaded.
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
from reference_files import REFERENCE

import minibert
from minibert.errors import CheckpointError, MinibertError, TokenizerError
from minibert.families.parts.config import Config
from minibert.families.rows import BLOCKS, FAMILIES
from minibert.show.info import info

CASES = sorted(path.parent.name for path in REFERENCE.glob("*/case.json"))
SENTENCES = sorted(path.name for path in REFERENCE.glob("sentences-*"))
# what only sentence vectors are read from
SENTENCE_FILES = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"} | {
    f"{module}/config.json" for module in ("1_Pooling", "2_Dense", "3_Normalize", "2_Normalize")
}
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
        "tokenizer_config.json": {
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


def changed(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest or odd is not MISSING:
        copy[key] = changed(value.get(key, {}) if isinstance(value, dict) else value[key], tuple(rest), odd)
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
            path.write_text(json.dumps(changed(json.loads(before), place, odd)), encoding="utf-8")
        else:
            path.unlink()
        said = "missing" if odd is MISSING else repr(odd)[:40]
        wrong += used(folder, f"{folder.name}/{name} {'.'.join(map(str, place))} = {said}:", name not in SENTENCE_FILES)
        path.write_text(before, encoding="utf-8")
    return wrong


# a case for each model_type, and the folders that have more files
BY_TYPE = {json.loads((REFERENCE / case / "config.json").read_text())["model_type"]: case for case in CASES}
WHOLE = [*BY_TYPE.values(), *SENTENCES, *VARIANTS]
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
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for flag, odd in product(FLAGS[name], ("false", "true", 0, 1, 1.0, float("nan"), [])):
        text = json.dumps(changed(config, tuple(flag.split(".")), odd))
        (folder / "config.json").write_text(text, encoding="utf-8")
        said = rf"'{flag.rpartition('.')[2]}' must be (true or false|False for bert), found "
        with pytest.raises(CheckpointError, match=said):
            minibert.load(folder).attention_position, minibert.load_encoder(folder)


def test_what_is_not_foreseen_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BY_TYPE.keys() == set(FAMILIES) >= set(BLOCKS), "every family is there"
    folder = prepared("bert", tmp_path / "bert")
    for error in (OverflowError("int too large to convert"), TypeError("unhashable type: 'list'"), KeyError("x")):
        monkeypatch.setattr(Config, "flag", mock.Mock(side_effect=error))
        assert len(used(folder, "planted")) >= 2
