"""`--why` of `similar`, `rank` and `search`: the pairs of tokens under each result are those of `similarity_pairs`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import Printed, failure, ran
from record_files import made
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.models.sentences.token_pairs import SimilarityPairs

DENSE, BARE, PROMPTS, LATE = (
    str(REFERENCE / name) for name in ("sentences-search", "sentences-bare", "sentences-prompts", "late-fixed")
)
LINES = ["we lived above", "the clouds", "a man", "we"]
PAIR = re.compile(r"(\S+) ~ (\S+) ([+-]\d\.\d{4,})")


def lines(folder: Path) -> Path:
    return made(folder / "lines.txt", "".join(f"{line}\n" for line in LINES))


def check(line: str, split: SimilarityPairs) -> None:
    want = [(one, other, f"{adds:+.4f}") for one, other, adds in split.largest(3) if adds]
    assert PAIR.findall(line) == want and want


def test_similar(minilm: Path, tmp_path: Path, capsys: Printed) -> None:
    text, file = "The bank raised its interest rates today.", tmp_path / "a.txt"
    made(file, "Loans became more expensive this week.\nThe cat sleeps.\n")
    out = ran(capsys, "similar", text, "--file", file, "--why", "-m", minilm)[0].splitlines()
    assert out[:2] == [
        "0.423  Loans became more expensive this week.",
        "       interest ~ loans +0.0187   bank ~ loans +0.0171   raised ~ became +0.0158",
    ]
    assert out[::2] == ran(capsys, "similar", text, "--file", file, "-m", minilm)[0].splitlines() and len(out) == 4


@pytest.mark.parametrize(("command", "model"), [("similar", DENSE), ("similar", LATE), ("rank", LATE)])
def test_each_result_has_its_pairs(command: str, model: str, tmp_path: Path, capsys: Printed) -> None:
    out = ran(capsys, command, "we lived", "--file", lines(tmp_path), "--why", "-m", model)[0].splitlines()
    with minibert.load_encoder(model) as encoder:
        for hit, why in zip(out[::2], out[1::2], strict=True):
            check(why, encoder.similarity_pairs("we lived", hit.split(maxsplit=1)[1], ("query", "document")))
    assert len(out) == 2 * len(LINES)


@pytest.mark.parametrize("more", [[], ["--prompt", "the "], ["--show", "id"]])
@pytest.mark.parametrize("model", [DENSE, BARE, LATE])
def test_search(model: str, more: list[str], tmp_path: Path, capsys: Printed) -> None:
    source = made(tmp_path / "a.jsonl", "".join(json.dumps({"id": i, "text": x}) + "\n" for i, x in enumerate(LINES)))
    assert main(["bulk", str(source), "-o", str(tmp_path / "out"), "-m", model, "--keep", "id"]) == 0
    capsys.readouterr()
    search = "search", tmp_path / "out", "we lived", "clouds", *more
    out, plain = ran(capsys, *search, "--why")[0].splitlines(), ran(capsys, *search)[0].splitlines()
    assert [line for line in out if not PAIR.search(line)] == plain
    answers = [json.loads(line) for line in ran(capsys, *search, "--why", "--json")[0].splitlines()]
    every = [result["why"] for answer in answers for result in answer["results"]]
    shown = [PAIR.findall(line) for line in out if PAIR.search(line)]
    assert shown == [[(each["token"], each["other"], f"{each['adds']:+.4f}") for each in why] for why in every]
    result = answers[0]["results"][0]
    with minibert.load_encoder(model, prompts={"query": more[1]} if "--prompt" in more else None) as encoder:
        name = "query" if "query" in encoder.prompts else None
        split = encoder.similarity_pairs("we lived", LINES[result["id"]], (name, "document" if model == LATE else None))
    assert result["score"] == pytest.approx(split.pairs.sum(), abs=1e-5)
    check("   ".join(f"{each['token']} ~ {each['other']} {each['adds']:+.4f}" for each in result["why"]), split)


def test_a_folder_whose_similarity_is_no_sum_is_refused(tmp_path: Path, capsys: Printed) -> None:
    for more, model, wrong in (
        (["--precision", "ubinary"], DENSE, "has ubinary vectors, and their Hamming distance is no sum"),
        ([], REFERENCE / "sentences-cls", "that of the first token alone"),
    ):
        out = tmp_path / wrong[:5]
        assert main(["bulk", str(lines(tmp_path)), "-o", str(out), "-m", str(model), *more]) == 0
        capsys.readouterr()
        assert wrong in failure(capsys, "search", out, "we", "--why")
