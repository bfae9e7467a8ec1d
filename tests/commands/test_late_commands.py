"""Late interaction at the command line: `encode`, `similar`, `rank` and `info` of a folder of MultiVectorEncoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import Printed, failure, numbers, ran
from record_files import made
from reference_files import REFERENCE
from safetensors.numpy import load_file

import minibert

LATE, PROMPTS = str(REFERENCE / "late-fixed"), str(REFERENCE / "sentences-prompts")
TEXTS = ["we lived above the clouds", "", "clouds! the"]
LINES = ["we lived above", "the clouds", "a b c d e f!", "the clouds above we lived"]
SAME = 2e-6  # of numbers of size 1, computed beside other texts; measured: 4.2e-7
SHOWN = 6e-4  # of scores with three digits


def test_encode_prints_a_line_for_each_token(capsys: Printed) -> None:
    encoder = minibert.load_encoder(LATE)
    for task in (None, "query", "document"):
        out, _ = ran(capsys, "encode", "-m", LATE, *TEXTS, *(["--task", task] if task else []))
        want = encoder.encode(TEXTS) if task is None else getattr(encoder, f"encode_{task}")(TEXTS)
        found = [numbers(part) for part in out.removesuffix("\n\n").split("\n\n")]
        assert [len(each) for each in found] == [len(each) for each in want]
        assert all(np.allclose(*each, 0, SAME) for each in zip(found, want, strict=True)), task


def test_encode_writes_them_with_offsets(tmp_path: Path, capsys: Printed) -> None:
    path, want = tmp_path / "vectors.safetensors", minibert.load_encoder(LATE).encode_query(TEXTS)
    ran(capsys, "encode", "-m", LATE, "-o", path, "--task", "query", *TEXTS)
    found = load_file(path)
    assert found["offsets"].tolist() == [0, 12, 24, 36]
    assert np.allclose(found["embeddings"], np.concatenate(want), 0, SAME)
    refused = failure(capsys, "encode", "-m", LATE, "-o", tmp_path / "a.npy", "we")
    assert "use .safetensors, which gets offsets" in refused


def test_a_task_of_sentence_vectors(capsys: Printed) -> None:
    encoder = minibert.load_encoder(PROMPTS)
    for task in ("query", "document"):
        found = numbers(ran(capsys, "encode", "-m", PROMPTS, "--task", task, *TEXTS)[0])
        assert np.allclose(found, getattr(encoder, f"encode_{task}")(TEXTS), 0, SAME)
    found = numbers(ran(capsys, "encode", "-m", PROMPTS, "--task", "query", "--prompt", "", *TEXTS)[0])
    assert np.allclose(found, encoder.encode_query(TEXTS, prompt=""), 0, SAME)


@pytest.mark.parametrize("command", [["rank"], ["similar"], ["similar", "--rerank", LATE]])
def test_lines_in_the_order_of_their_scores(command: list[str], tmp_path: Path, capsys: Printed) -> None:
    file = made(tmp_path / "a.txt", "".join(f"{line}\n" for line in LINES))
    out, err = ran(capsys, command[0], "the clouds", "--file", file, "-m", LATE, *command[1:], "-k", "3")
    want = minibert.load_encoder(LATE).rank("the clouds", LINES, 3, return_documents=True)
    found = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [text for _, text in found] == [each["text"] for each in want] and err == ""
    assert all(abs(float(score) - each["score"]) <= SHOWN for (score, _), each in zip(found, want, strict=True))


def test_lines_that_are_too_long_are_counted(tmp_path: Path, capsys: Printed) -> None:
    file = made(tmp_path / "a.txt", f"we\n{'we lived ' * 20}\n")
    for command in ("rank", "similar"):
        assert "1 text truncated" in ran(capsys, command, "the clouds", "--file", file, "-m", LATE)[1]


def test_a_table_has_queries_in_its_lines(capsys: Printed) -> None:
    out = ran(capsys, "similar", "the clouds", "we lived", "-m", LATE)[0].splitlines()
    encoder, texts = minibert.load_encoder(LATE), ["the clouds", "we lived"]
    want = encoder.similarity(encoder.encode_query(texts), encoder.encode_document(texts))
    found = np.array([[float(number) for number in line.split()[1:3]] for line in out[1:]])
    assert np.abs(found - want).max() <= SHOWN


def test_info(capsys: Printed) -> None:
    out = ran(capsys, "info", LATE)[0]
    for line in (
        "made for          encode_query, encode_document, encode and rank, as a MultiVectorEncoder",
        "token vectors     6 numbers for each token; by maxsim",
        "queries           at most 12 tokens, filled up to 12 with mask tokens, not seen by the others",
        'documents         at most 14 tokens, without ! " #',
        "prompts           query 'the ', document 'we '",
    ):
        assert line in out
    out = ran(capsys, "info", REFERENCE / "late-least")[0]
    assert "filled up to 9 with the, seen by the others, without we ! notatoken" in out and "by meanmaxsim" in out
    assert "6 numbers for each token" in ran(capsys, "info", REFERENCE / "late-stanford")[0]  # no weight is read


def test_what_such_a_folder_does_not_do(capsys: Printed) -> None:
    for argv in (["classify", "we", "-m", LATE], ["verify", "--vectors", "/nowhere.npy", "-m", LATE]):
        assert failure(capsys, *argv)
