"""`encode`, `similar`, `rank`, `classify`, `fill`, `next` with each kind of folder: prints and errors; and the pairs of
tokens that `--why` prints under each result, which are those of `similarity_pairs`.
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import word_models
from command_line import Patch, Printed, failure, numbers, ran, typed
from record_files import jsonl, lines
from reference_files import REFERENCE
from safetensors.numpy import load_file

import minibert
from minibert import Prediction
from minibert.bulk.stored import StoredVectors
from minibert.commands import answers, common
from minibert.models.sentences.token_pairs import SimilarityPairs

RERANKER, LOGITS, LABELS = (str(REFERENCE / f"uses-{name}") for name in ("reranker", "reranker-logits", "inference"))
DENSE, SEARCHED, BARE, PROMPTS = (f"{REFERENCE}/sentences-{name}" for name in ("dense", "search", "bare", "prompts"))
LATE = str(REFERENCE / "late-fixed")


@pytest.mark.parametrize("command", [
    ("encode", "sentences-dense"), ("encode", "uses-sparse"), ("encode", "late-fixed"),
    ("embed", "sentences-dense"), ("similar", "sentences-dense", "we", "--file", "-"),
    ("rank", "uses-reranker", "we", "--file", "-"),
], ids=" ".join)  # fmt: skip
def test_empty_lines_are_skipped_and_counted(command: tuple[str, ...], monkeypatch: Patch, capsys: Printed) -> None:
    name, model, *rest = command
    argv, printed = (name, "-m", REFERENCE / model, *rest), []
    for typed_lines, said in ((b"we\nclouds!\n", ""), (b"we\n\nclouds!\n", "minibert: 1 empty line skipped\n"),
                              (b"\nwe\n \t\r\nclouds!\n\n", "minibert: 3 empty lines skipped\n")):  # fmt: skip
        typed(monkeypatch, typed_lines)
        out, err = ran(capsys, *argv)
        assert err == said
        printed.append(out)
    assert printed[0] and printed == [printed[0]] * 3
    typed(monkeypatch, b"\n\n")
    if rest:  # there is nothing to order
        assert failure(capsys, *argv) == "stdin: expected texts, one on each line, found none"
    else:
        assert ran(capsys, *argv) == ("", "minibert: 2 empty lines skipped\n")


LATE_TEXTS = ["we lived above the clouds", "", "clouds! the"]
LINES = ["we lived above", "the clouds", "a b c d e f!", "the clouds above we lived", "we lived " * 20 + "we"]
SAME = 2e-6  # of numbers of size 1, computed beside other texts; measured: 4.2e-7
SHOWN = 6e-4  # of scores with three digits


def test_token_vectors_are_printed_and_written(capsys: Printed, tmp_path: Path) -> None:
    encoder = minibert.load_encoder(LATE)
    for more, method in (([], encoder.encode), (["--task", "document"], encoder.encode_document),
                         (["--task", "query"], encoder.encode_query)):  # fmt: skip
        out, _ = ran(capsys, "encode", "-m", LATE, *LATE_TEXTS, *more)
        found, want = [numbers(part) for part in out.removesuffix("\n\n").split("\n\n")], method(LATE_TEXTS)
        assert [len(each) for each in found] == [len(each) for each in want]
        assert all(np.allclose(*each, 0, SAME) for each in zip(found, want, strict=True)), more
    path = tmp_path / "vectors.safetensors"  # of the queries, as the last ones above
    ran(capsys, "encode", "-m", LATE, "-o", path, *more, *LATE_TEXTS)
    found = load_file(path)
    assert found["offsets"].tolist() == [0, 12, 24, 36]
    assert np.allclose(found["embeddings"], np.concatenate(want), 0, SAME)


@pytest.mark.parametrize(("command", "model"), [("rank", LOGITS), ("rank", LATE), ("similar", LATE)])
def test_lines_in_the_order_of_their_scores(command: str, model: str, tmp_path: Path, capsys: Printed) -> None:
    file = lines(tmp_path / "a.txt", LINES)
    for k, more in ((len(LINES), []), (3, ["-k", "3", "--threads", "1"])):
        out, err = ran(capsys, command, "the clouds", "--file", file, "-m", model, *more)
        want = minibert.load_encoder(model).rank("the clouds", LINES, k, return_documents=True)
        found = [line.split(maxsplit=1) for line in out.splitlines()]
        assert [text for _, text in found] == [each["text"] for each in want] and "truncated: " in err
        assert all(abs(float(score) - each["score"]) <= SHOWN for (score, _), each in zip(found, want, strict=True))
        assert command == "similar" or [line[7:] for line in out.splitlines()] == [f"  {text}" for _, text in found]


def test_a_table_of_late_interaction(capsys: Printed) -> None:
    """A line is a query, a column a document."""
    out = ran(capsys, "similar", "the clouds", "we lived", "-m", LATE)[0].splitlines()
    encoder, texts = minibert.load_encoder(LATE), ["the clouds", "we lived"]
    want = encoder.similarity(encoder.encode_query(texts), encoder.encode_document(texts))
    assert np.abs(np.array([line.split()[1:3] for line in out[1:]], float) - want).max() <= SHOWN


def test_each_text_is_printed_above_its_answers(tmp_path: Path, capsys: Printed) -> None:
    """What `bars` makes of them is held below."""
    bert, gpt2 = (minibert.load_encoder(word_models.write(tmp_path / name, name)) for name in ("bert", "gpt2"))
    masked, texts = ["we [MASK] above", "[MASK] the [MASK]"], ["we", "the dog"]
    (one,), (first, second) = ([_bars(words) for words in masks] for masks in bert.fill(masked, k=3))
    want = [masked[0], *one, "", masked[1], "mask 1", *first, "mask 2", *second, ""]
    assert ran(capsys, "fill", "-m", tmp_path / "bert", "-k", "3", *masked) == ("\n".join(want), "")
    labels = minibert.load_encoder(LABELS).classify(texts, 2)
    for command, found in (
        (["next", "-m", tmp_path / "gpt2"], [_bars(words, '"') for words in gpt2.next_words(texts)]),
        (["classify", "-k", "2", "-m", LABELS],
         [answers.bars([(each.label, each.probability) for each in label]) for label in labels]),
    ):  # fmt: skip
        want = [texts[0], *found[0], "", texts[1], *found[1], ""]
        assert ran(capsys, *command, *texts) == ("\n".join(want), ""), command


def _bars(words: list[Prediction], quote: str = "") -> list[str]:
    return answers.bars([(each["token_str"], each["score"]) for each in words], quote)


def test_a_bar_is_as_long_as_its_word_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("向量", 0.5), ("ab", 0.2), ("c\x1b", 0.001)]
    for encoding, stroke in (("utf-8", "█"), ("ascii", "#"), ("latin-1", "#")):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        want = [f"  向量   0.5000  {stroke * 20}", f"  ab     0.2000  {stroke * 8}", "  c\\x1b  0.0010"]
        assert answers.bars(found) == want
    assert answers.bars(found[1:], quote='"')[0] == '  "ab"     0.2000  ########'
    monkeypatch.setattr(sys, "stdout", None)
    assert answers.bars(found)[0].endswith("#")


def test_a_text_above_its_words_is_bold_and_harmless(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    for coloured, shown in ((False, "a \\x1b[2m text"), (True, "\x1b[1ma \\x1b[2m text\x1b[0m")):
        for module in (answers, common):
            monkeypatch.setattr(module, "coloured", lambda coloured=coloured: coloured)
        answers.print_answers(["a \x1b[2m text", "we"], [["  word"], []])
        assert capsys.readouterr().out.split("\n")[:3] == [shown, "  word", ""]


def test_the_usual_model_is_one_that_can(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    load = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr("minibert.models.open.load_encoder.load_encoder", load)
    for command, usual in (("fill", "bert-base-uncased"), ("next", "gpt2")):
        assert failure(capsys, command, "we") == "enough" and load.call_args.args == (usual,)
        assert f"or {usual}" in " ".join(ran(capsys, "help", command)[0].split())


TEXTS = ["we lived above the clouds", "the clouds", "above", "we lived in a"]
OF_LENGTH_1 = 1e-6  # of vectors of length 1, computed beside other texts; measured: 1.2e-7
OPTIONS = ["--prompts", "document=above ", "--prompts", "query=we ", "--truncate-dim", "4", "--max-seq-length", "6"]
ASKED: dict[str, Any] = {"prompts": {"document": "above ", "query": "we "}, "truncate_dim": 4, "max_seq_length": 6}


def test_a_search_has_the_options_of_bulk(tmp_path: Path, capsys: Printed) -> None:
    """One that forgets them has queries of another width; one that forgets a prompt has other scores."""
    source, out = lines(tmp_path / "a.txt", TEXTS), tmp_path / "out"
    bulk = "bulk", source, "-o", out, "-m", DENSE
    ran(capsys, *bulk, *OPTIONS, "--default-prompt-name", "document", "--similarity-fn-name", "dot")
    asked = ASKED | {"default_prompt_name": "document", "similarity_fn_name": "dot"}
    assert StoredVectors(out).meta["options"] == asked
    assert "was made with options {" in failure(capsys, *bulk)
    encoder = minibert.load_encoder(DENSE, **asked)
    vectors = encoder.encode(TEXTS)
    assert np.abs(np.concatenate([*StoredVectors(out).blocks()]) - vectors).max() <= OF_LENGTH_1
    question = "we lived above the clouds above"
    asked_for = ([], encoder.encode_query(question)), (["--prompt", "the "], encoder.encode(question, prompt="the "))
    for more, query in asked_for:
        (found,) = map(json.loads, ran(capsys, "search", out, question, "--json", *more)[0].splitlines())
        scores = np.sort(encoder.similarity(query, vectors)[0])[::-1]
        assert found["measure"] == "dot"
        assert np.allclose([each["score"] for each in found["results"]], scores, 0, 1e-5)


@pytest.mark.parametrize(("given", "measure"), [([], "euclidean"), (["--similarity-fn-name", "dot"], "dot")])
def test_similar_takes_them(given: list[str], measure: str, tmp_path: Path, capsys: Printed) -> None:
    encoder = minibert.load_encoder(PROMPTS, similarity_fn_name=measure, **ASKED)
    file = lines(tmp_path / "lines", TEXTS[:1])
    out, _ = ran(capsys, "similar", "-m", PROMPTS, "the clouds", "--file", file, *OPTIONS, *given)
    want = encoder.similarity(encoder.encode_query("the clouds"), encoder.encode_document(TEXTS[0]))[0, 0]
    assert out == f"{want:.3f}  {TEXTS[0]}\n"


WHY_LINES = ["we lived above", "the clouds", "a man", "we"]
PAIR = re.compile(r"(\S+) ~ (\S+) ([+-]\d\.\d{4,})")


def check(line: str, split: SimilarityPairs) -> None:
    want = [f"{one} ~ {other} {adds:+.4f}" for one, other, adds in split.largest(3) if adds]
    assert line == "   ".join(want) and want


@pytest.mark.parametrize(("command", "model"), [("similar", SEARCHED), ("similar", LATE), ("rank", LATE)])
def test_each_result_has_its_pairs(command: str, model: str, tmp_path: Path, capsys: Printed) -> None:
    argv = command, "we lived", "--file", lines(tmp_path / "lines.txt", WHY_LINES), "-m", model
    indent = " " * (9 if command == "rank" else 7)
    out, plain = ran(capsys, *argv, "--why")[0].splitlines(), ran(capsys, *argv)[0].splitlines()
    assert out[::2] == plain and len(out) == 2 * len(WHY_LINES)
    with minibert.load_encoder(model) as encoder:
        for hit, why in zip(out[::2], out[1::2], strict=True):
            split = encoder.similarity_pairs("we lived", hit.split(maxsplit=1)[1], ("query", "document"))
            check(why.removeprefix(indent), split)


@pytest.mark.parametrize("more", [[], ["--prompt", "the "], ["--show", "id"]])
@pytest.mark.parametrize("model", [SEARCHED, BARE, LATE])
def test_search_says_why(model: str, more: list[str], tmp_path: Path, capsys: Printed) -> None:
    source = jsonl(tmp_path / "a.jsonl", ({"id": i, "text": text} for i, text in enumerate(WHY_LINES)))
    ran(capsys, "bulk", source, "-o", tmp_path / "out", "-m", model, "--keep", "id")
    search = "search", tmp_path / "out", "we lived", "clouds", *more
    out, plain = ran(capsys, *search, "--why")[0].splitlines(), ran(capsys, *search)[0].splitlines()
    assert [line for line in out if not PAIR.search(line)] == plain
    answers = [json.loads(line) for line in ran(capsys, *search, "--why", "--json")[0].splitlines()]
    every = [result["why"] for answer in answers for result in answer["results"]]
    shown = [PAIR.findall(line) for line in out if PAIR.search(line)]
    assert shown == [[(each["token"], each["other"], f"{each['adds']:+.4f}") for each in why] for why in every]
    result = answers[0]["results"][0]
    with minibert.load_encoder(model, prompts={"query": more[1]} if "--prompt" in more else None) as encoder:
        tasks = "query" if "query" in encoder.prompts else None, "document" if model == LATE else None
        split = encoder.similarity_pairs("we lived", WHY_LINES[result["id"]], tasks)
    assert result["score"] == pytest.approx(split.pairs.sum(), abs=1e-5)
    check("   ".join(f"{each['token']} ~ {each['other']} {each['adds']:+.4f}" for each in result["why"]), split)


def test_a_distance_of_bits_is_no_sum(tmp_path: Path, capsys: Printed) -> None:
    bulk = "bulk", lines(tmp_path / "lines.txt", WHY_LINES), "-o", tmp_path / "out", "-m", SEARCHED
    ran(capsys, *bulk, "--precision", "ubinary")
    said = failure(capsys, "search", tmp_path / "out", "we", "--why")
    assert "has ubinary vectors, and their Hamming distance is no sum" in said
