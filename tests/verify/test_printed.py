"""`minibert verify` where neither torch nor a file is there: numbers that notebooks print of two well-known models.

With `--seeds` it fetches them through the real client: what it fetches and says, and that nothing is no verdict.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import Patch, Printed, failure, ran
from fake_hub import FakeHub, quick_pauses, refused, status, use
from printed_models import (
    FACTS,
    add_as_on_the_hub,
    is_row,
    printed_of,
    write_bert_tokenizer,
    write_gpt2_tokenizer,
    write_model,
)
from reference_files import BY_NAME

import minibert
from minibert.cli import main
from minibert.commands.verify import NO_HUB
from minibert.equations.input_layer import Array
from minibert.verify import shipped
from minibert.verify import verify as verify_module
from minibert.verify.report import Comparison, compare_ids
from minibert.verify.shipped import SEEDS, check_printed, find_printed, half_steps, half_units, verify_seed
from minibert.verify.subjects import Subject, tolerances, trace
from minibert.verify.verify import verify

BERT = BY_NAME["bert"]
OF_BERT, OF_GPT2 = SEEDS
LOOKUPS = ("embeddings.word_embeddings", "embeddings.token_type_embeddings", "embeddings.position_embeddings")


def test_nothing_to_compare_with(capsys: Printed) -> None:
    said = failure(capsys, "verify", "--model", BERT.folder)
    assert "torch and transformers are not installed" in said
    assert "only of bert-base-uncased, gpt2" in said and "name a file with --against" in said


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((model, "bert-base-uncased") for model in (
            "bert-base-uncased", "google-bert/bert-base-uncased", "./models/bert-base-uncased/",
            "/hub/models--google-bert--bert-base-uncased/snapshots/86b5")),
        ("openai-community/gpt2", "gpt2"),
        *((model, None) for model in ("bert-base-cased", "distilgpt2", "gpt2-medium")),
    ],
)  # fmt: skip
def test_stored_values_are_found_by_name_and_sizes(model: str, name: str | None) -> None:
    sizes = printed_of(name or "gpt2")["sizes"]
    layer: Any = SimpleNamespace(config=sizes)
    found = find_printed(model, layer)
    assert (found and found["model"]) == name
    layer.config = {**sizes, "vocab_size": 5}
    assert find_printed(model, layer) is None


KEPT = FACTS["bert-base-uncased"]


def off_by_half_units(got: Array, entry: dict[str, Any]) -> Array:
    """How far numbers are from the printed ones, in halves of the last digit."""
    return np.asarray(np.abs(got - np.array(entry["printed"], float)) / half_units(entry["printed"]))


def test_printed_positions_are_the_real_ones() -> None:
    """The real numbers in full, of the rows and columns that are printed."""
    real = np.array(KEPT["rows"], np.float32).astype(np.float64)
    entries = [entry for entry in printed_of("bert-base-uncased")["values"] if entry["key"] == LOOKUPS[2]]
    assert sum(len(entry["tokens"]) for entry in entries) >= 12
    for entry in entries:
        got = real[np.ix_(entry["tokens"], [KEPT["columns"].index(column) for column in entry["columns"]])]
        assert off_by_half_units(got, entry).max() <= 1


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
            # of the sum and of at most three rows with as many digits
            assert off_by_half_units(got, entry).max() <= 4


def test_the_page_counts_the_printed_numbers() -> None:
    page = Path(__file__).parents[2] / "scripts" / "site" / "pages" / "verifier.md"
    counts = [sum(np.size(x["printed"]) for x in printed_of(name)["values"]) for name in shipped.printed_models()]
    assert "{} printed numbers of bert-base-uncased and {} of gpt2".format(*counts) in page.read_text(encoding="utf-8")


def test_printed_ids_are_the_tokenizer_s(minilm: Path) -> None:
    """all-MiniLM-L6-v2 has the vocabulary of bert-base-uncased."""
    values = printed_of("bert-base-uncased")
    with minibert.load(minilm) as layer:
        texts = [((text["text"],), {"input_ids": text["input_ids"]}) for text in values["texts"]]
        report = Comparison()
        compare_ids(report, layer, texts, "as printed")
        assert report.passed and report.lines == [f"ids of {len(texts)} texts: as printed"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> dict[str, Path]:
    """Models whose printed numbers are the true ones, and whose others are zeros."""
    made = {seed.model: write_model(tmp_path_factory.mktemp("hub") / seed.model, seed.model) for seed in SEEDS}
    write_bert_tokenizer(made[OF_BERT.model], minilm)
    write_gpt2_tokenizer(made[OF_GPT2.model])
    return made


@pytest.fixture(scope="module")
def planted(folders: dict[str, Path]) -> Path:
    return folders[OF_BERT.model]


def only_lookups(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "values": [entry for entry in values["values"] if entry["key"] in LOOKUPS]}


def test_printed_rows_are_checked_to_half_a_unit(planted: Path) -> None:
    values = only_lookups(printed_of("bert-base-uncased"))
    with minibert.load(planted) as layer:
        checked = check_printed(Subject(layer, minibert.load), values)
        assert {c.key for c in checked} == set(LOOKUPS)
        assert all(c.passes for c in checked) and sum(c.numbers for c in checked) > 250
        for entry in values["values"]:
            text = entry["printed"][0][0]
            unit = Decimal(1).scaleb(Decimal(text).as_tuple().exponent)  # of its last digit
            for further in ("1.2", "1"):  # further off than half a unit; one more in the last digit
                entry["printed"][0][0] = str(Decimal(text) + Decimal(further) * unit)
                assert not all(c.passes for c in check_printed(Subject(layer, minibert.load), values)), entry
            entry["printed"][0][0] = text


def test_a_model_with_other_numbers_fails_and_says_what_was_compared(planted: Path, capsys: Printed) -> None:
    """Rows as printed, but the zeros of the rest of each row show in the norm."""
    assert main(["verify", "--model", str(planted)]) == 1
    said = capsys.readouterr().out
    assert "torch and transformers are not installed, so the reference was not run" in said
    assert "compared with printed numbers of bert-base-uncased, whose name and sizes this model has" in said
    assert re.search(r"^embeddings.word_embeddings +\d+ .* as printed$", said, re.MULTILINE)
    assert re.search(r"^embeddings.LayerNorm +\d+ .* DIFFERENT$", said, re.MULTILINE)


def test_where_the_reference_runs_it_alone_decides(planted: Path, minilm: Path, monkeypatch: Patch) -> None:
    """Neither a folder's name nor its numbers promise anything then."""
    monkeypatch.setattr(verify_module, "installed", lambda: True)
    monkeypatch.setattr(verify_module, "Reference", lambda *_, **__: object())
    monkeypatch.setattr(verify_module, "compare_with", lambda *_: None)
    for folder in (planted, minilm):
        said = str(verify(str(folder)))
        assert not [word for word in ("printed", "ship with", "sentence-transformers/all-MiniLM-L6-v2") if word in said]


def test_other_ids_than_printed_fail(planted: Path, monkeypatch: Patch) -> None:
    """Every number may be right: the tokenizer is another one."""
    values = only_lookups(printed_of("bert-base-uncased"))
    wrong = {**values, "texts": [{"text": "we lived", "input_ids": [1, 2]}]}
    monkeypatch.setattr(shipped, "find_printed", lambda model, layer: wrong)
    report = verify(str(planted))
    assert not report.passed and all(c.passes for c in report.checked)
    assert [line for line in report.lines if line.startswith("'we lived' gives input_ids ")]


def test_tolerances_of_a_layer_without_a_norm() -> None:
    with BY_NAME["t5-encoder"].layer() as layer:
        assert tolerances(layer) == {"position_ids": 0.0, "encoder.embed_tokens": 0.0, "sum": 0.0}


# -- --seeds ---------------------------------------------------------------------------------------------------------

MOST = 250_000  # bytes of one model's tensors, header included; measured: 143,360 and 69,632
HEADER = 1 << 15  # bytes that are asked for first


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: Patch) -> Iterator[FakeHub]:
    quick_pauses(monkeypatch)
    with FakeHub() as hub:
        for seed in SEEDS:
            add_as_on_the_hub(hub, seed.model, folders[seed.model], seed.commit)
        use(monkeypatch, hub.endpoint, tmp_path)
        yield hub


@pytest.fixture
def rows_alone(monkeypatch: Patch) -> None:
    """Of the printed numbers those that are a table's own, which the made-up models can have right."""
    found = shipped.find_printed

    def find(model: str, layer: Any) -> dict[str, Any] | None:
        values = found(model, layer)
        return values and {**values, "values": [entry for entry in values["values"] if is_row(entry)]}

    monkeypatch.setattr(shipped, "find_printed", find)


@pytest.mark.usefixtures("rows_alone")
def test_both_pass_for_a_fraction_of_a_megabyte_each(hub: FakeHub, capsys: Printed) -> None:
    out, _ = ran(capsys, "verify", "--seeds")
    assert out.splitlines()[-2:] == ["bert-base-uncased: passed", "gpt2: passed"]
    assert out.count("every number is the one that was printed") == 2 and "ids of 5 texts: as printed" in out
    for seed in SEEDS:
        sent = sum(request.sent for request in hub.asked(rf"{seed.model}/resolve/{seed.commit}/model\.safetensors"))
        assert HEADER < sent < MOST, (seed, sent)
    tokenizer = sum(request.sent for request in hub.asked("/(tokenizer|vocab|merges)"))
    assert hub.sent - tokenizer < 2 * MOST  # with everything else: the configs, the lists of files, HTTP headers
    assert not hub.asked("/main")  # what was printed is of one commit
    hub.forget()
    assert main(["verify", "--seeds", "--local-files-only"]) == 0
    assert hub.requests == []


@pytest.mark.parametrize("model", [seed.model for seed in SEEDS])
def test_every_printed_number_can_be_a_float32(model: str) -> None:
    """What is allowed holds at least one float32: NumPy prints the fewest digits that name it, not the nearest ones."""
    for entry in printed_of(model)["values"]:
        numbers = np.array(entry["printed"], np.float64)
        allowed = np.maximum(half_units(entry["printed"]), half_steps(numbers)) + shipped.SLACK
        assert (np.abs(numbers.astype(np.float32) - numbers) <= allowed).all(), entry


@pytest.mark.usefixtures("rows_alone")
def test_one_number_that_differs_is_found(hub: FakeHub, tmp_path: Path) -> None:
    wrong = write_model(tmp_path / "wrong", "gpt2")
    with open(wrong / "model.safetensors", "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(8 + length + json.loads(file.read(length))["wpe.weight"]["data_offsets"][0])
        file.write(np.float32(-0.0189).tobytes())  # printed: -0.01882071979343891
    hub.add("gpt2", {path.name: path for path in wrong.iterdir()}, OF_GPT2.commit)
    report = verify_seed(OF_GPT2)
    assert report.ran and not report.passed
    assert [checked.key for checked in report.checked if not checked.passes] == ["wpe"]


def test_other_sizes_are_no_pass(hub: FakeHub, folders: dict[str, Path]) -> None:
    files = {path.name: path for path in folders["gpt2"].iterdir()}
    hub.add(OF_BERT.model, files, OF_BERT.commit)
    report = verify_seed(OF_BERT)
    assert report.ran and not report.passed and "its sizes are not those" in report.lines[-1]


def test_without_a_network_nothing_is_a_pass(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    quick_pauses(monkeypatch)
    use(monkeypatch, refused(), tmp_path)
    assert main(["verify", "--seeds"]) == NO_HUB == 3
    said = capsys.readouterr().out
    assert said.splitlines()[-2:] == ["bert-base-uncased: not run here", "gpt2: not run here"]
    for seed in SEEDS:
        assert f"not run here: {seed.model} at {seed.commit}: ConnectError: " in said
    assert "passed" not in said and "HF_HUB_OFFLINE=1" in said
    assert main(["verify", "--seeds", "--local-files-only"]) == NO_HUB


@pytest.mark.usefixtures("rows_alone")
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_one_that_cannot_be_had_is_not_covered_by_the_other(file: str, hub: FakeHub, capsys: Printed) -> None:
    """Also where the Hub fails halfway, after the config."""
    hub.misbehave(rf"gpt2/.*{file}", status(503))
    assert main(["verify", "--seeds"]) == NO_HUB
    assert capsys.readouterr().out.splitlines()[-2:] == ["bert-base-uncased: passed", "gpt2: not run here"]


def test_a_difference_says_more_than_what_was_not_run(hub: FakeHub) -> None:
    hub.misbehave("gpt2/", status(503))
    assert main(["verify", "--seeds"]) == 1


@pytest.mark.parametrize("other", [["gpt2"], ["-m", "gpt2"], ["--texts", "a"], ["--revision", "main"]])
def test_it_names_its_own_models(other: list[str], capsys: Printed) -> None:
    assert "--seeds names its own models and commits" in failure(capsys, "verify", "--seeds", *other)
