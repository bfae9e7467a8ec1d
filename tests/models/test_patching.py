"""The map of activation patching: each cell is one run, and texts and models without a map are refused in words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import write_byte_level

import minibert
from minibert.equations.heads import log_softmax
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.models import patching
from minibert.models.patching import patching_map

SMALL = Path(__file__).parents[2] / "scripts" / "study"
# a share is a difference of log probabilities of float32 over one of 3 or more: measured 1e-6
CLOSE = 1e-5
TEXTS = {
    "bert-words": ("masked_word", "questi[MASK]n", "questa[MASK]n"),
    "gpt2-words": ("next_word", "wonderfu", "wonderou"),
}


@cache
def loaded(name: str) -> minibert.Encoder:
    return minibert.load_encoder(SMALL / name)


def cell_by_cell(encoder: minibert.Encoder, head: str, text: str, other: str, token: int) -> Array:
    """Compute one run for each cell, without `patching_map`."""
    clean, given = encoder.trace(**encoder.tokenize(text)), encoder.tokenize(other)

    def run(batch: dict[str, Any], change: Any = None) -> Array:
        return log_softmax(encoder.logits(**batch, head=head, change=change)[0, token].astype(np.float64))

    of_text = run(encoder.tokenize(text))
    label = of_text.argmax()
    low = run(given)[label]

    def share(i: int, t: int) -> float:
        def put(values: Array) -> Array:
            values[0, t] = clean[f"hidden_states.{i}"][0, t]
            return values

        return float((run(given, {f"hidden_states.{i}": put})[label] - low) / (of_text[label] - low))

    states, seq = len(encoder.stack.blocks) + 1, given["input_ids"].shape[1]
    return np.array([[share(i, t) for t in range(seq)] for i in range(states)])


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("turned", [False, True])
def test_each_cell_is_a_run_of_its_own(name: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (head, *texts) = loaded(name), TEXTS[name]
    text, other = texts[::-1] if turned else texts
    found = patching_map(encoder, text, other)
    token = text.index("[") + 1 if "[" in text else len(text)
    expected = cell_by_cell(encoder, head, text, other, token)
    assert found.token == token and np.abs(found.shares - expected).max() < CLOSE
    # before block 0 only the exchanged letter differs; after the last block only the predicting token counts
    (letter,) = np.flatnonzero(found.ids[0] != found.ids[1])
    for row, at in ((0, letter), (-1, token)):
        assert found.shares[row] == pytest.approx(np.eye(expected.shape[1])[at], abs=CLOSE)
    assert found.clean > found.corrupted + 0.3
    assert turned or encoder.tokens([found.label]) == [{"bert-words": "o", "gpt2-words": "l"}[name]]
    monkeypatch.setattr(patching, "AT_ONCE", 3 * expected.shape[1])  # three texts a call, and one or two in the last
    assert np.abs(patching_map(encoder, text, other).shares - expected).max() < CLOSE
    # the map says something: shifted by a block, by a token or with the texts exchanged it is another one
    for wrong in (np.roll(expected, 1, axis=0), np.roll(expected, 1, axis=1)):
        assert np.abs(wrong - expected).max() > 0.1
    assert np.abs(cell_by_cell(encoder, head, other, text, token) - expected).max() > 0.01


def test_twelve_blocks_and_twelve_tokens_take_fifteen_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_byte_level(encoders.write(tmp_path, "gpt2", vocab_size=261, n_layer=12))
    encoder = minibert.load_encoder(folder)
    calls: list[int] = []
    for kind in ("__call__", "trace"):
        before = getattr(minibert.Encoder, kind)

        def counted(self: Any, *given: Any, before: Any = before, **named: Any) -> Any:
            calls.append(named["input_ids"].size)
            return before(self, *given, **named)

        monkeypatch.setattr(minibert.Encoder, kind, counted)
    found = patching_map(encoder, "zyxwvutsrqpo", "zyxwvvtsrqpo")
    assert found.shares.shape == (13, 12) and len(calls) == 13 + 2
    assert sum(calls) == (13 * 12 + 2) * 12, "each cell is one text of twelve tokens"


@pytest.mark.parametrize(
    ("name", "text", "other", "token", "says"),
    [
        ("bert-words", "questi[MASK]n", "quest[MASK]n", None, "10 .*9"),
        ("bert-words", "questi[MASK]n", "questi[MASK]n", None, "the same tokens; change a word"),
        ("bert-words", "question", "questian", None, r"\[MASK\]"),
        ("bert-words", "quest[MASK][MASK]n", "quast[MASK][MASK]n", None, r"\[MASK\].*\[6, 7\]"),
        ("bert-words", "questi[MASK]n", "quest[MASK]on", None, r"'\[MASK\]' .*'o' .*7"),
        ("bert-words", "questi[MASK]n", "questa[MASK]n", 10, r"10.*0\.\.9"),
        ("gpt2-words", "wonderfu", "wonderou", 3, r"3 .*0\.\d+ and 0\.\d+"),
        ("gpt2-words", "wonderfu", "wonderou", -1, "-1"),
        ("gpt2-words", "", "w", None, "as many tokens"),
    ],
)
def test_texts_without_a_map_are_refused(name: str, text: str, other: str, token: int | None, says: str) -> None:
    with pytest.raises((ValueError, IndexError), match=says):
        patching_map(loaded(name), text, other, token)


def test_a_model_without_a_head_for_words_is_refused(minilm: Path) -> None:
    with minibert.load_encoder(minilm) as encoder, pytest.raises(CheckpointError):
        patching_map(encoder, "a dog", "a cat")
