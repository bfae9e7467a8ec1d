"""`minibert verify` where neither torch nor a file is there: numbers that notebooks print of two well-known models."""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from printed_models import FACTS, printed_of, write_bert_tokenizer, write_model
from reference_files import BY_NAME

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.verify import printed
from minibert.verify import verify as verify_module
from minibert.verify.printed import check, find, half_units
from minibert.verify.report import Comparison, compare_ids
from minibert.verify.subjects import Subject, tolerances
from minibert.verify.traces import trace
from minibert.verify.verify import verify

BERT = BY_NAME["bert"]
LOOKUPS = ("embeddings.word_embeddings", "embeddings.token_type_embeddings", "embeddings.position_embeddings")


def test_nothing_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--model", str(BERT.folder)]) == 2
    said = capsys.readouterr().err
    assert "torch and transformers are not installed" in said
    assert "only of bert-base-uncased, gpt2" in said and "name a file with --against" in said


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("bert-base-uncased", "bert-base-uncased"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("./models/bert-base-uncased/", "bert-base-uncased"),
        ("/hub/models--google-bert--bert-base-uncased/snapshots/86b5", "bert-base-uncased"),
        ("openai-community/gpt2", "gpt2"),
        ("bert-base-cased", None),
        ("distilgpt2", None),
        ("gpt2-medium", None),
    ],
)
def test_stored_values_are_found_by_name_and_sizes(model: str, name: str | None) -> None:
    sizes = printed_of(name or "gpt2")["sizes"]
    layer: Any = SimpleNamespace(config=sizes)
    found = find(model, layer)
    assert (found and found["model"]) == name
    assert find(model, SimpleNamespace(config={**sizes, "vocab_size": 5})) is None  # type: ignore[arg-type]


KEPT = FACTS["bert-base-uncased"]


def test_printed_positions_are_the_real_ones() -> None:
    """The real numbers in full, of the rows and columns that are printed."""
    real = np.array(KEPT["rows"], np.float32).astype(np.float64)
    entries = [entry for entry in printed_of("bert-base-uncased")["values"] if entry["key"] == LOOKUPS[2]]
    assert sum(len(entry["tokens"]) for entry in entries) >= 12
    for entry in entries:
        got = real[np.ix_(entry["tokens"], [KEPT["columns"].index(column) for column in entry["columns"]])]
        assert (np.abs(got - np.array(entry["printed"], float)) <= half_units(entry["printed"])).all()


def test_the_rows_kept_here_are_the_real_table_s(bert_positions: Array) -> None:
    rows = bert_positions[: len(KEPT["rows"])]
    assert [hashlib.sha256(row.tobytes()).hexdigest() for row in rows] == KEPT["rows_sha256"]
    assert np.array_equal(rows[:, KEPT["columns"]], np.array(KEPT["rows"], np.float32))


@pytest.mark.parametrize("model", ["bert-base-uncased", "gpt2"])
def test_printed_sums_are_those_of_printed_rows(model: str, tmp_path: Path) -> None:
    """Sums go column by column: those of the printed columns need no other number."""
    entries = [entry for entry in printed_of(model)["values"] if entry["key"] == "sum"]
    assert entries
    with minibert.load(write_model(tmp_path, model)) as layer:
        for entry in entries:
            rows = trace(layer, {"input_ids": np.array([entry["input_ids"]])})["sum"][0]
            got = rows[np.ix_(entry["tokens"], np.arange(768)[entry["columns"]])]
            allowed = 4 * half_units(entry["printed"])  # of the sum and of at most three rows with as many digits
            assert (np.abs(got - np.array(entry["printed"], float)) <= allowed).all()


def test_the_page_counts_the_printed_numbers() -> None:
    page = Path(__file__).parents[2] / "scripts" / "site" / "pages" / "verifier.md"
    counts = [sum(np.size(each["printed"]) for each in printed_of(model)["values"]) for model in printed.names()]
    assert "{} printed numbers of bert-base-uncased and {} of gpt2".format(*counts) in page.read_text(encoding="utf-8")


def test_printed_ids_are_the_tokenizer_s(minilm: Path) -> None:
    """all-MiniLM-L6-v2 has the vocabulary of bert-base-uncased."""
    values = printed_of("bert-base-uncased")
    with minibert.load(minilm) as layer:
        texts = [((text["text"],), {"input_ids": text["input_ids"]}) for text in values["texts"]]
        report = Comparison()
        compare_ids(report, layer, texts, "as printed")
        assert report.passed and report.lines == [f"ids of {len(texts)} texts: as printed"]
        compare_ids(report, layer, [(("We lived",), {"input_ids": [1, 2]})], "as printed")
        assert not report.passed
        assert report.lines[1:] == ["'We lived' gives input_ids [101, 2057, 2973, 102], expected [1, 2]"]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A bert-base-uncased whose printed numbers are the true ones, and whose others are zeros."""
    folder = write_model(tmp_path_factory.mktemp("hub") / "bert-base-uncased", "bert-base-uncased")
    return write_bert_tokenizer(folder, minilm)


def only_lookups(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "values": [entry for entry in values["values"] if entry["key"] in LOOKUPS]}


def test_printed_rows_are_checked_to_half_a_unit(planted: Path) -> None:
    values = only_lookups(printed_of("bert-base-uncased"))
    with minibert.load(planted) as layer:
        checked = check(Subject(layer, minibert.load), values)
        assert {c.key for c in checked} == set(LOOKUPS)
        assert all(c.passes for c in checked) and sum(c.numbers for c in checked) > 250
        for entry in values["values"]:
            text = entry["printed"][0][0]
            digits = len(text.partition("e")[0].partition(".")[2])
            unit = 10.0 ** (int(text.partition("e")[2] or 0) - digits)
            entry["printed"][0][0] = f"{float(text) + 1.2 * unit:.{digits + 1}e}"  # further off than half a unit
            assert not all(c.passes for c in check(Subject(layer, minibert.load), values)), entry
            near = Decimal(text) + Decimal(1).scaleb(Decimal(text).as_tuple().exponent)  # one more in the last digit
            entry["printed"][0][0] = str(near)
            assert not all(c.passes for c in check(Subject(layer, minibert.load), values)), entry
            entry["printed"][0][0] = text


def test_a_model_with_other_numbers_fails_and_says_what_was_compared(
    planted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows as printed, but the zeros of the rest of each row show in the norm."""
    assert main(["verify", "--model", str(planted)]) == 1
    said = capsys.readouterr().out
    assert "torch and transformers are not installed, so the reference was not run" in said
    assert "compared with printed numbers of bert-base-uncased, whose name and sizes this model has" in said
    assert re.search(r"^embeddings.word_embeddings +\d+ .* as printed$", said, re.MULTILINE)
    assert re.search(r"^embeddings.LayerNorm +\d+ .* DIFFERENT$", said, re.MULTILINE)


def test_where_the_reference_runs_it_alone_decides(
    planted: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a folder's name nor its numbers promise anything then."""
    monkeypatch.setattr(verify_module, "installed", lambda: True)
    monkeypatch.setattr(verify_module, "Reference", lambda *_, **__: object())
    monkeypatch.setattr(verify_module, "compare_with", lambda *_: None)
    for folder in (planted, minilm):
        lines = "\n".join(verify(str(folder)).lines)
        assert not [
            word for word in ("printed", "ship with", "sentence-transformers/all-MiniLM-L6-v2") if word in lines
        ]


def test_other_ids_than_printed_fail(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number may be right: the tokenizer is another one."""
    values = only_lookups(printed_of("bert-base-uncased"))
    wrong = {**values, "texts": [{"text": "we lived", "input_ids": [1, 2]}]}
    monkeypatch.setattr(printed, "find", lambda model, layer: wrong)
    report = verify(str(planted))
    assert not report.passed and all(c.passes for c in report.checked)
    assert [line for line in report.lines if line.startswith("'we lived' gives input_ids ")]


def test_tolerances_of_a_layer_without_a_norm() -> None:
    with BY_NAME["t5-encoder"].layer() as layer:
        assert tolerances(layer) == {"position_ids": 0.0, "encoder.embed_tokens": 0.0, "sum": 0.0}
