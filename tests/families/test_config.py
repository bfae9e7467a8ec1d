"""A config's words and defaults; and what many layers share never changes: all that a row holds, a layer's config."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

import pytest
from checkpoints import BERT, T5, write
from reference_files import REFERENCE

import minibert
from minibert import FAMILIES, Family
from minibert.families.gemma import OTHER_IDS
from minibert.families.parts.config import Config, Frozen, replace
from minibert.families.parts.steps import Norm, Positions, Tokens
from minibert.families.rows import BLOCKS

CONSTANT = (str, int, float, bool, frozenset, FunctionType, type(None))


def constants_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All that can be reached from a value, with the way to it."""
    yield path, value
    inside: Any = ()
    if isinstance(value, Frozen | MappingProxyType):
        inside = (vars(value) if isinstance(value, Frozen) else value).items()
    elif isinstance(value, tuple | partial):
        inside = enumerate(value if isinstance(value, tuple) else value.args)
        assert not getattr(value, "keywords", None), f"{path}: keywords of a partial can be changed"
    for name, item in inside:
        yield from constants_in(item, f"{path}.{name}")


def test_nothing_in_the_table_of_families_can_be_changed() -> None:
    found = dict(constants_in(MappingProxyType(dict(FAMILIES)), "FAMILIES"))
    assert len(found) > 1000 and "FAMILIES.bert.steps.0.names" in found  # the walk went all the way down
    fixed = (*CONSTANT, Frozen, tuple, MappingProxyType, partial)
    assert {path: type(value).__name__ for path, value in found.items() if not isinstance(value, fixed)} == {}


def test_a_row_keeps_what_it_was_made_of() -> None:
    """The caller's own dict and list stay the caller's: what happens to them later does not reach the row."""
    names, inner = ["tok.weight"], {"a": [1]}
    defaults = {"eps": 1e-5, "nested": inner}
    row = Family(model_type="mine", steps=[Tokens(path="tok", names=names)], defaults=defaults)  # type: ignore[arg-type]
    names.append("other")
    defaults["eps"] = 1.0
    inner["a"].append(2)
    assert row.steps[0].names == ("tok.weight",)
    assert row.defaults == {"eps": 1e-5, "nested": {"a": (1,)}}
    changed = replace(row, only={"a": "b"})
    assert (changed.only, row.only, changed.defaults) == ({"a": "b"}, {}, row.defaults)
    assert repr(changed).endswith("defaults={'eps': 1e-05, 'nested': {'a': (1,)}}, only={'a': 'b'})")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_may_be_sent_to_another_process(name: str) -> None:
    row = FAMILIES[name]
    copied: Any
    for copied in (pickle.loads(pickle.dumps(row)), copy.deepcopy(row), copy.copy(row)):
        assert repr(copied).partition(" at 0x")[0] == repr(row).partition(" at 0x")[0]
        assert copied.defaults == row.defaults and [vars(step).keys() for step in copied.steps]
        with pytest.raises(TypeError):
            copied.defaults["pad_token_id"] = 3
        with pytest.raises(AttributeError):
            copied.model_type = "other"


def test_a_config_says_that_it_is_read_only_and_may_be_copied_and_sent(tmp_path: Path) -> None:
    config = minibert.load(write(tmp_path, T5 | {"of_each_part": [{"rate": 0.1}]})).config
    for key in ("hidden_size", "d_model", "new", "_data"):
        with pytest.raises(AttributeError, match=key):
            setattr(config, key, 3)
        with pytest.raises(AttributeError):
            delattr(config, key)
    for copied in (config, pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert copied == config and copied.hidden_size == 8 and copied.n_positions == 512
        assert copied.pad_token_id == 0  # a default of the family
        with pytest.raises(TypeError):
            copied["task_specific_params"]["new"] = 1
        with pytest.raises(minibert.CheckpointError, match=r"config.json: 'colour'"):
            copied.integer("colour")


def test_null_under_one_word_gives_way_to_a_value_under_another() -> None:
    words = {"hidden_size": "n_embd", "width": "n_embd"}
    for data in ({"hidden_size": None, "n_embd": 8}, {"n_embd": None, "hidden_size": 8}):
        config = Config(data, words, {"hidden_size": 3})
        assert config.hidden_size == config["n_embd"] == config.integer("hidden_size") == 8
        assert config.get("n_embd") == 8
    nothing = Config({"hidden_size": None, "n_embd": None}, words, {"hidden_size": 3})
    assert nothing["hidden_size"] is None  # the file says that there is none, so no default stands in


# -- what a row of one's own, and what is passed for it, is told -----------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ((Positions(path="embeddings.position_embeddings"), Tokens(path="embeddings.word_embeddings")), "a Positions"),
        ((Norm(path="embeddings.LayerNorm"),), "a Norm"),
        ((Tokens(path="embeddings.word_embeddings", when=lambda config: False),), "no step"),
        ((), "no step"),
    ],
)
def test_a_first_step_that_is_not_tokens(tmp_path: Path, steps: tuple[Any, ...], found: str) -> None:
    row = Family(model_type="mine", steps=steps, checked_prefixes=())
    with pytest.raises(ValueError, match=f"{found}"):
        minibert.load(write(tmp_path), family=row)


@pytest.mark.parametrize("given", ["gpt2", "nonsense", Family, {"model_type": "bert"}])
def test_a_family_that_is_none(tmp_path: Path, given: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(given).__name__}") as told:
        minibert.load(write(tmp_path, BERT), family=given)
    assert ("minibert.FAMILIES['gpt2']" in str(told.value)) == (given == "gpt2")


# -- defaults ----------------------------------------------------------------------------------------------------------

# keys that the reference's code asks for and its class does not list; mpnet has no types
OLDER_GEMMA2 = ("tie_word_embeddings", "sliding_window_pattern", "global_head_dim", "num_global_key_value_heads")
UNLISTED = {
    "modernbert": {"global_attn_every_n_layers"}, "gemma3_text": {"sliding_window_pattern"},
    "embedding_gemma2_text": set(OLDER_GEMMA2), "embedding_gemma2": {*OLDER_GEMMA2, *OTHER_IDS},
    "mpnet": {"type_vocab_size"}, "t5": {"tie_word_embeddings"}, "umt5": {"tie_word_embeddings"},
    "clip": {"tie_word_embeddings"}, "clip_text_model": {"tie_word_embeddings"},
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_default_is_that_of_the_reference_s_class(name: str) -> None:
    stored = json.loads((REFERENCE / "defaults.json").read_text(encoding="utf-8"))
    assert name in stored, "python scripts/reference/make.py --only defaults writes the defaults of its class"
    theirs = stored[name]
    ours = {"tie_word_embeddings": True, **FAMILIES[name].defaults}
    assert {key: ours.get(key) for key in theirs} == theirs
    assert ours.keys() - theirs.keys() == UNLISTED.get(name, set())


WINDOWS: list[tuple[str, dict[str, Any], list[int | None]]] = [
    ("mistral", {}, [4095] * 2), ("ministral3", {}, [None] * 2), ("modernbert", {}, [None, 64, 64, None, 64]),
    ("gemma3_text", {}, [4095] * 5 + [None, 4095]), ("ultrabert", {}, [128, 128, None, 128]),
    ("embedding_gemma2_text", {"num_hidden_layers": 8}, [512] * 5 + [None, 512, None]),
    ("ultrabert", {"attention_windows": [None, 0, 7, 9], "num_hidden_layers": 4}, [None, None, 7, 7]),
    ("qwen2", {}, [None] * 30), ("qwen3", {"use_sliding_window": True}, [None] * 28 + [4095] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "windows"), WINDOWS)
def test_windows_by_default(name: str, config: dict[str, Any], windows: list[int | None]) -> None:
    row = BLOCKS[name]
    read = row.configure(FAMILIES[name], config, "config.json")
    assert [row.attend.window(read, i) for i in range(len(windows))] == windows
