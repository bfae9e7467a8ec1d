"""`minibert rank`, `classify` and `similar --rerank`: what goes to stdout, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Patch, Printed, failure, ran, typed
from record_files import made
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.commands import similar

RERANKER, LOGITS, LABELS, DENSE = (
    str(REFERENCE / name) for name in ("uses-reranker", "uses-reranker-logits", "uses-inference", "sentences-dense")
)
LINES = ["we lived", "above the clouds", "", "a b c", "we lived above!"]


@pytest.fixture
def lines(tmp_path: Path) -> str:
    return str(made(tmp_path / "lines.txt", "\n".join(LINES)))


def test_rank_prints_the_lines_best_first(lines: str, capsys: Printed) -> None:
    found = minibert.load_encoder(LOGITS).rank("the clouds", [line for line in LINES if line], return_documents=True)
    want = [f"{each['score']:7.3f}  {each['text']}" for each in found]
    rank = "rank", "the clouds", "--file", lines, "-m", LOGITS
    assert ran(capsys, *rank) == ("\n".join([*want, ""]), "") and len(want) == 4
    assert ran(capsys, *rank, "-k", "2", "--threads", "1")[0].splitlines() == want[:2]


@pytest.mark.parametrize(("typed_in", "found"), [(b"we\n\nthe\n", ["the", "we"]), (b"\n \n", [])])
def test_rank_reads_stdin(typed_in: bytes, found: list[str], monkeypatch: Patch, capsys: Printed) -> None:
    typed(monkeypatch, typed_in)
    out, err = ran(capsys, "rank", "the clouds", "--file", "-", "-m", RERANKER)
    assert sorted(line.split()[1] for line in out.splitlines()) == found and err == ""


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (DENSE, (), "encode_query and encode_document; for scores of pairs name the folder of a CrossEncoder"),
        (LABELS, (), "rank needs one number a pair, but this model has 3 labels"),
        (RERANKER, ("-k", "0"), "-k must be an integer >= 1, found 0"),
        (RERANKER, ("--threads", "0"), "threads must be an integer >= 1"),
    ],
)
def test_rank_refuses_before_it_reads_a_line(model: str, more: tuple[str, ...], message: str, capsys: Printed) -> None:
    assert message in failure(capsys, "rank", "we", "--file", "/nowhere", "-m", model, *more)


def test_rank_needs_a_file(tmp_path: Path, capsys: Printed) -> None:
    assert main(["rank", "we", "-m", RERANKER]) == 2
    assert "the following arguments are required: --file" in capsys.readouterr().err
    assert "/nowhere: No such file" in failure(capsys, "rank", "we", "--file", "/nowhere", "-m", RERANKER)
    file = made(tmp_path / "bytes", b"we\n\xff\n")
    assert "line 2 of" in failure(capsys, "rank", "we", "--file", file, "-m", RERANKER)


def test_classify_prints_each_text_with_its_labels(capsys: Printed) -> None:
    out, err = ran(capsys, "classify", "the clouds", "we", "-m", LABELS, "-k", "2")
    printed = out.splitlines()
    assert err == "" and [printed[i] for i in (0, 3, 4)] == ["the clouds", "", "we"] and len(printed) == 7
    for start, text in ((1, "the clouds"), (5, "we")):
        want = [[each.label, f"{each.probability:.4f}"] for each in minibert.load_encoder(LABELS).classify(text, 2)]
        assert [line.split()[:2] for line in printed[start : start + 2]] == want


def test_classify_refuses(capsys: Printed) -> None:
    said = failure(capsys, "classify", "we", "-m", DENSE)
    assert "there is no head 'classes'; it has no head" in said and "; name a model with that head with --model" in said
    assert "-k must be an integer >= 1, found 0" in failure(capsys, "classify", "we", "-m", LABELS, "-k", "0")


def test_the_nearest_lines_are_ordered_by_a_reranker(lines: str, monkeypatch: Patch, capsys: Printed) -> None:
    """Only the nearest: what is far is not shown to the reranker, whatever it would say."""
    monkeypatch.setattr(similar, "RERANKED", 2)
    encoder, reranker = minibert.load_encoder(DENSE), minibert.load_encoder(LOGITS)
    full = [line for line in LINES if line]
    scores = encoder.similarity(encoder.encode_query("lived"), encoder.encode_document(full))[0]
    nearest = [full[i] for i in sorted(range(4), key=lambda i: -scores[i])[:2]]
    want = [each["text"] for each in reranker.rank("lived", nearest, return_documents=True)]
    assert want != nearest and want != [e["text"] for e in reranker.rank("lived", full, return_documents=True)][:2]
    for k, found in (("2", want), ("1", want[:1])):
        out, _ = ran(capsys, "similar", "lived", "--file", lines, "--rerank", LOGITS, "-m", DENSE, "-k", k)
        assert [line.split(maxsplit=1)[1] for line in out.splitlines()] == found
    # with a larger k more lines than RERANKED go to the reranker
    out, _ = ran(capsys, "similar", "lived", "--file", lines, "--rerank", LOGITS, "-m", DENSE, "-k", "4")
    assert len(out.splitlines()) == 4


def test_reranking_refuses(lines: str, capsys: Printed) -> None:
    for argv, message in (
        (["the", "--rerank", RERANKER, "-m", DENSE], "--rerank orders the lines of a file; pass --file too"),
        (["--file", "/nowhere", "--rerank", DENSE, "-m", DENSE], "name the folder of a CrossEncoder with --rerank"),
        (
            ["--file", lines, "--rerank", RERANKER, "-m", RERANKER],
            "CrossEncoder, whose methods here are predict and",
        ),
    ):
        assert message in failure(capsys, "similar", "we", *argv)


def test_other_commands_about_such_folders(capsys: Printed) -> None:
    said = failure(capsys, "encode", "we", "-m", RERANKER)
    assert "for one vector of a text name the folder of a SentenceTransformer with --model" in said
    assert "made for          predict and rank, as a CrossEncoder\n" in ran(capsys, "info", RERANKER)[0]
