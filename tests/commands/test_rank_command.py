"""`minibert rank`, `classify` and `similar --rerank`: what goes to stdout, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Printed, failure, typed
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
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    return str(tmp_path / "lines.txt")


def test_rank_prints_the_lines_best_first(lines: str, capsys: Printed) -> None:
    found = minibert.load_encoder(LOGITS).rank("the clouds", [line for line in LINES if line], return_documents=True)
    want = [f"{each['score']:7.3f}  {each['text']}" for each in found]
    assert main(["rank", "the clouds", "--file", lines, "-m", LOGITS]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == want and len(want) == 4 and captured.err == ""
    assert main(["rank", "the clouds", "--file", lines, "-m", LOGITS, "-k", "2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == want[:2]


def test_rank_reads_stdin(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    typed(monkeypatch, b"we\n\nthe\n")
    assert main(["rank", "the clouds", "--file", "-", "-m", RERANKER]) == 0
    assert sorted(line.split()[1] for line in capsys.readouterr().out.splitlines()) == ["the", "we"]


def test_rank_of_no_line_prints_nothing(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "empty").write_text("\n \n", encoding="utf-8")
    assert main(["rank", "the clouds", "--file", str(tmp_path / "empty"), "-m", RERANKER]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (
            DENSE,
            (),
            "this model's folder was saved as a SentenceTransformer, whose methods here are encode; for predict and",
        ),
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
    (tmp_path / "bytes").write_bytes(b"we\n\xff\n")
    assert "line 2 of" in failure(capsys, "rank", "we", "--file", str(tmp_path / "bytes"), "-m", RERANKER)


def test_classify_prints_each_text_with_its_labels(capsys: Printed) -> None:
    assert main(["classify", "the clouds", "we", "-m", LABELS, "-k", "2"]) == 0
    captured = capsys.readouterr()
    printed = captured.out.splitlines()
    assert captured.err == "" and [printed[i] for i in (0, 3, 4)] == ["the clouds", "", "we"] and len(printed) == 7
    for start, text in ((1, "the clouds"), (5, "we")):
        found = minibert.load_encoder(LABELS).classify(text, 2)
        assert [line.split()[:2] for line in printed[start : start + 2]] == [
            [each.label, f"{each.probability:.4f}"] for each in found
        ]


def test_classify_refuses(capsys: Printed) -> None:
    assert "there is no head 'classes'; it has no head" in failure(capsys, "classify", "we", "-m", DENSE)
    assert "-k must be an integer >= 1, found 0" in failure(capsys, "classify", "we", "-m", LABELS, "-k", "0")


def test_the_nearest_lines_are_ordered_by_a_reranker(
    lines: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    """Only the nearest: what is far is not shown to the reranker, whatever it would say."""
    monkeypatch.setattr(similar, "RERANKED", 2)
    encoder, reranker = minibert.load_encoder(DENSE), minibert.load_encoder(LOGITS)
    full = [line for line in LINES if line]
    scores = encoder.similarity(encoder.encode_query("lived"), encoder.encode_document(full))[0]
    nearest = [full[i] for i in sorted(range(4), key=lambda i: -scores[i])[:2]]
    want = [each["text"] for each in reranker.rank("lived", nearest, return_documents=True)]
    assert want != nearest and want != [e["text"] for e in reranker.rank("lived", full, return_documents=True)][:2]
    arguments = ["similar", "lived", "--file", lines, "--rerank", LOGITS, "-m", DENSE]
    assert main([*arguments, "-k", "2"]) == 0
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()] == want
    assert main([*arguments, "-k", "1"]) == 0
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()] == want[:1]
    assert main([*arguments, "-k", "4"]) == 0  # more lines than usually go to the reranker
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_reranking_refuses(lines: str, capsys: Printed) -> None:
    message = failure(capsys, "similar", "we", "the", "--rerank", RERANKER, "-m", DENSE)
    assert "--rerank orders the lines of a file; pass --file too" in message
    message = failure(capsys, "similar", "we", "--file", "/nowhere", "--rerank", DENSE, "-m", DENSE)
    assert "was saved as a SentenceTransformer" in message
    message = failure(capsys, "similar", "we", "--file", lines, "--rerank", RERANKER, "-m", RERANKER)
    assert "was saved as a CrossEncoder, whose methods here are predict and rank" in message


def test_other_commands_about_such_folders(capsys: Printed) -> None:
    assert "for encode load the folder of a SentenceTransformer" in failure(capsys, "encode", "we", "-m", RERANKER)
    assert main(["info", RERANKER]) == 0
    assert "made for          predict and rank, as a CrossEncoder\n" in capsys.readouterr().out
