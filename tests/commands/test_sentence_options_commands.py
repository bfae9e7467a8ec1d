"""The options of sentence vectors on the command line: they reach the model, and a folder of `bulk` keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, failure, ran
from record_files import made
from reference_files import REFERENCE

import minibert
from minibert.bulk.stored import StoredVectors
from minibert.cli import main

DENSE, PROMPTS = REFERENCE / "sentences-dense", REFERENCE / "sentences-prompts"
TEXTS = ["we lived above the clouds", "the clouds", "above", "we lived in a"]
SAME = 1e-6  # of vectors of length 1, computed beside other texts; measured: 1.2e-7
OPTIONS = ["--prompts", "document=above ", "--prompts", "query=we ", "--truncate-dim", "4", "--max-seq-length", "6"]
ASKED: dict[str, Any] = {"prompts": {"document": "above ", "query": "we "}, "truncate_dim": 4, "max_seq_length": 6}


def test_a_search_has_the_options_of_bulk_and_its_own(tmp_path: Path, capsys: Printed) -> None:
    """One that forgets them has queries of another width; one that forgets a prompt has other scores."""
    source, out = made(tmp_path / "a.txt", "\n".join(TEXTS)), tmp_path / "out"
    bulk = ["bulk", source, "-o", out, "-m", DENSE, *OPTIONS, "--default-prompt-name", "document"]
    assert main([*map(str, bulk), "--similarity-fn-name", "dot"]) == 0
    asked = ASKED | {"default_prompt_name": "document", "similarity_fn_name": "dot"}
    assert StoredVectors(out).meta["options"] == asked
    encoder = minibert.load_encoder(DENSE, **asked)
    vectors = encoder.encode(TEXTS)
    assert np.abs(np.concatenate([*StoredVectors(out).blocks()]) - vectors).max() <= SAME
    question = "we lived above the clouds above"
    for more, query, measure in (
        ([], encoder.encode_query(question), "dot"),
        (["--prompts", "query=the "], encoder.encode(question, prompt="the "), "dot"),
        (["--similarity-fn-name", "manhattan"], encoder.encode_query(question), "manhattan"),
    ):
        (found,) = map(json.loads, ran(capsys, "search", out, question, "--json", *more)[0].splitlines())
        other = minibert.load_encoder(DENSE, similarity_fn_name=measure)
        scores = np.sort(other.similarity(query, vectors)[0])[::-1]
        assert found["measure"] == measure and np.allclose(
            [each["score"] for each in found["results"]], scores, 0, 1e-5
        )


def test_a_folder_of_other_options_is_not_continued(tmp_path: Path, capsys: Printed) -> None:
    source, out = made(tmp_path / "a.txt", "\n".join(TEXTS)), tmp_path / "out"
    ran(capsys, "bulk", source, "-o", out, "-m", DENSE)
    ran(capsys, "bulk", source, "-o", out, "-m", DENSE)
    assert "was made with options None, now" in failure(capsys, "bulk", source, "-o", out, "-m", DENSE, *OPTIONS)


@pytest.mark.parametrize(("given", "measure"), [([], "euclidean"), (["--similarity-fn-name", "dot"], "dot")])
def test_similar_takes_them(given: list[str], measure: str, tmp_path: Path, capsys: Printed) -> None:
    encoder = minibert.load_encoder(PROMPTS, similarity_fn_name=measure, **ASKED)
    file = made(tmp_path / "lines", TEXTS[0] + "\n")
    out, _ = ran(capsys, "similar", "-m", PROMPTS, "the clouds", "--file", file, *OPTIONS, *given)
    want = encoder.similarity(encoder.encode_query("the clouds"), encoder.encode_document(TEXTS[0]))[0, 0]
    assert out == f"{want:.3f}  {TEXTS[0]}\n"


def test_what_cannot_be_asked_for_is_said_in_words_of_a_shell(tmp_path: Path, capsys: Printed) -> None:
    source = made(tmp_path / "a.txt", "we\n")
    bits = tmp_path / "bits"
    ran(capsys, "bulk", source, "-o", bits, "-m", DENSE, "--precision", "binary")
    bulk = ["bulk", source, "-o", tmp_path / "out", "-m", DENSE]
    for argv, message in (
        ([*bulk, "--default-prompt-name", "x"], "--default-prompt-name must be one of the prompts 'query', 'document'"),
        ([*bulk, "--truncate-dim", "0"], "--truncate-dim must be an integer >= 1, found 0"),
        ([*bulk, "--similarity-fn-name", "x"], "--similarity-fn-name must be one of cosine, dot, "),
        (
            [*bulk, "--vectors", "input", "--truncate-dim", "3"],
            "--truncate-dim is for sentence vectors; leave it out w",
        ),
        (["search", bits, "we", "--similarity-fn-name", "dot"], "--similarity-fn-name is without effect on binary vec"),
        (["search", bits, "we", "--truncate-dim", "3"], "has vectors of 6 numbers, found queries of 3"),
    ):
        assert message in failure(capsys, *argv)
    assert main(["similar", "a", "b", "-m", str(DENSE), "--prompts", "query"]) == 2
    assert "--prompts: expected NAME=TEXT, found 'query'" in capsys.readouterr().err
