"""How much of texts is left out: what `tokens_cut` counts, and what the commands say of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import same_bits
from command_line import Printed
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE

import minibert
from minibert.cli import main

DENSE, PROMPTS, RERANKER, LABELS = (
    str(REFERENCE / name) for name in ("sentences-dense", "sentences-prompts", "uses-reranker", "uses-inference")
)
LONGER = "we " * 35  # 37 tokens with [CLS] and [SEP], where 32 are taken


@given(words=st.lists(st.integers(0, 60), max_size=8))
@settings(max_examples=20)
def test_tokens_cut_counts_what_is_over_the_longest_length(words: list[int]) -> None:
    found = minibert.load_encoder(DENSE).tokens_cut(["we " * count for count in words])
    assert found.dtype == np.int64 and found.tolist() == [max(0, count + 2 - 32) for count in words]


def test_tokens_cut_of_one_text_of_many_chunks_and_of_one_without_end() -> None:
    encoder = minibert.load_encoder(DENSE)
    assert (encoder.tokens_cut("we"), encoder.tokens_cut(LONGER)) == (0, 5) and type(encoder.tokens_cut("we")) is int
    texts = ["we"] * 1300
    texts[5] = texts[700] = texts[1299] = LONGER
    found = encoder.tokens_cut(texts)
    assert np.flatnonzero(found).tolist() == [5, 700, 1299] and set(found.tolist()) == {0, 5}
    assert encoder.tokens_cut(["we", "we " * 100_000]).tolist() == [0, 99_970]  # of which `encode` reads the beginning
    encoder.max_seq_length = 4
    assert encoder.tokens_cut(["we we", "we we we"]).tolist() == [0, 1] and encoder.tokens_cut([]).shape == (0,)
    with pytest.raises(TypeError, match=r"texts\[1300\] must be a str"):
        encoder.tokens_cut([*texts, 3])  # type: ignore[list-item]


def test_the_prompt_takes_room_and_a_task_has_a_length_of_its_own() -> None:
    encoder = minibert.load_encoder(PROMPTS)
    (long,) = encoder.sentence_tokenizer.encode(["the clouds: " + LONGER])
    (plain,) = encoder.sentence_tokenizer.encode([LONGER])
    assert encoder.tokens_cut(LONGER, prompt="") == len(plain.input_ids) - 12
    assert encoder.tokens_cut(LONGER, "query") == len(long.input_ids) - 12 > len(plain.input_ids) - 12
    assert encoder.tokens_cut("we " * 1000, "query") == 1000 + len(long.input_ids) - 35 - 12
    encoder._sentence_config = encoder.sentence_config._replace(lengths={"query": 20})
    assert encoder.tokens_cut(LONGER, "query", task="query") == len(long.input_ids) - 20
    assert encoder.tokens_cut(LONGER, "query", task="document") == len(long.input_ids) - 12


@pytest.mark.parametrize("folder", ["sentences-dense", "static-plain"])
def test_encode_warns_or_refuses_if_asked(folder: str) -> None:
    encoder = minibert.load_encoder(REFERENCE / folder, max_seq_length=8)
    texts = ["we"] * 1300
    texts[700] = texts[1299] = LONGER
    want = encoder.encode(texts)
    with pytest.warns(UserWarning, match="^2 of 1300 texts truncated, which tokens_cut counts: max_seq_length") as told:
        assert same_bits(encoder.encode(texts, truncation="warn"), want)
    assert [warning.filename for warning in told] == [__file__]
    said = r" has \d+ tokens, but texts are truncated at 8; shorten it, or leave truncation=\"error\" out$"
    with pytest.raises(ValueError, match=f"^text (700|1299){said}"):
        encoder.encode(texts, truncation="error")
    with pytest.raises(ValueError, match=f"^text 0{said}"):
        encoder.encode_query(LONGER, truncation="error")
    for truncation in ("ignore", "warn", "error"):
        assert np.abs(encoder.encode(texts[:700], truncation=truncation) - want[:700]).max() <= 1e-6
    assert same_bits(encoder.encode(texts, truncation="ignore"), want)
    with pytest.raises(ValueError, match="truncation must be 'ignore', 'warn' or 'error', found True"):
        encoder.encode("we", truncation=True)  # type: ignore[arg-type]


def test_commands_tell_how_many_texts_were_truncated(tmp_path: Path, capsys: Printed) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(f"we\n{LONGER}\nabove {LONGER}\nclouds\n", "utf-8")
    for command, *truncated in (
        (["encode", "-m", DENSE, "we", LONGER], "1 text"),
        (["encode", "-m", DENSE, "we", LONGER, "above", LONGER, LONGER], "3 texts"),
        (["encode", "-m", DENSE, "we"],),
        (["similar", "-m", DENSE, "we", LONGER], "1 text"),
        (["similar", "-m", DENSE, "we", "--file", str(lines)], "2 texts"),
        (["similar", "-m", DENSE, LONGER, "--file", str(lines)], "3 texts"),
        (["rank", "-m", RERANKER, "we", "--file", str(lines)], "2 pairs"),
        (["similar", "-m", DENSE, "we", "--file", str(lines), "--rerank", RERANKER], "2 pairs", "2 texts"),
        (["classify", "-m", LABELS, "we", LONGER], "1 text"),
        (["classify", "-m", LABELS, "we"],),
    ):
        assert main(command) == 0
        captured = capsys.readouterr()
        want = "".join(f"minibert: {what} truncated: too long for this model\n" for what in truncated)
        assert captured.err == want and captured.out, command
