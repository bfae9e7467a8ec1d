"""A config's words: null, true and false, and what a pickled one keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reference_files import REFERENCE

from minibert import FAMILIES
from minibert.families.gemma import OTHER_IDS
from minibert.families.rows import BLOCKS

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
    theirs = json.loads((REFERENCE / "defaults.json").read_text(encoding="utf-8"))[name]
    ours = {"tie_word_embeddings": True, **FAMILIES[name].defaults}
    assert {key: ours.get(key) for key in theirs} == theirs
    assert ours.keys() - theirs.keys() == UNLISTED.get(name, set())


@pytest.mark.parametrize(
    ("name", "config", "windows"),
    [
        ("mistral", {}, [4095] * 2),
        ("ministral3", {}, [None] * 2),
        ("modernbert", {}, [None, 64, 64, None, 64]),
        ("gemma3_text", {}, [4095] * 5 + [None, 4095]),
        ("embedding_gemma2_text", {"num_hidden_layers": 8}, [512] * 5 + [None, 512, None]),
        ("ultrabert", {}, [128, 128, None, 128]),
        ("ultrabert", {"attention_windows": [None, 0, 7, 9], "num_hidden_layers": 4}, [None, None, 7, 7]),
        ("qwen2", {}, [None] * 30),
        ("qwen3", {"use_sliding_window": True}, [None] * 28 + [4095] * 2),
    ],
)
def test_windows_by_default(name: str, config: dict[str, Any], windows: list[int | None]) -> None:
    row = BLOCKS[name]
    read = row.configure(FAMILIES[name], config, "config.json")
    assert [row.attend.window(read, i) for i in range(len(windows))] == windows
