"""`minibert verify --seeds` through the real client: what it fetches, what it says, and that nothing is no verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import FakeHub, quick_pauses, refused, status, use
from printed_models import (
    add_as_on_the_hub,
    is_row,
    printed_of,
    write_bert_tokenizer,
    write_gpt2_tokenizer,
    write_model,
)

from minibert.cli import main
from minibert.commands.verify import NO_HUB
from minibert.verify import printed
from minibert.verify.printed import SEEDS, half_steps, half_units, verify_seed

MOST = 250_000  # bytes of one model's tensors, header included; measured: 143,360 and 69,632
HEADER = 1 << 15  # bytes that are asked for first
BERT, GPT2 = SEEDS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> dict[str, Path]:
    made = {seed.model: write_model(tmp_path_factory.mktemp("hub") / seed.model, seed.model) for seed in SEEDS}
    write_bert_tokenizer(made[BERT.model], minilm)
    write_gpt2_tokenizer(made[GPT2.model])
    return made


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    quick_pauses(monkeypatch)
    with FakeHub() as hub:
        for seed in SEEDS:
            add_as_on_the_hub(hub, seed.model, folders[seed.model], seed.commit)
        use(monkeypatch, hub.endpoint, tmp_path)
        yield hub


@pytest.fixture
def rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the printed numbers those that are a table's own, which the made-up models can have right."""
    found = printed.find

    def find(model: str, layer: Any) -> dict[str, Any] | None:
        values = found(model, layer)
        return values and {**values, "values": [entry for entry in values["values"] if is_row(entry)]}

    monkeypatch.setattr(printed, "find", find)


@pytest.mark.usefixtures("rows_alone")
def test_both_pass_for_a_fraction_of_a_megabyte_each(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--seeds"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-2:] == ["bert-base-uncased: passed", "gpt2: passed"]
    assert out.count("every number is the one that was printed") == 2
    assert "ids of 5 texts: as printed" in out
    tokenizer = 0
    for seed in SEEDS:
        sent = sum(request.sent for request in hub.asked(rf"{seed.model}/resolve/{seed.commit}/model\.safetensors"))
        assert HEADER < sent < MOST, (seed, sent)
        texts = hub.asked(f"{seed.model}/.*/(tokenizer|vocab|merges)")
        tokenizer += sum(request.sent for request in texts)
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
        allowed = np.maximum(half_units(entry["printed"]), half_steps(numbers)) + printed.SLACK
        assert (np.abs(numbers.astype(np.float32) - numbers) <= allowed).all(), entry


@pytest.mark.usefixtures("rows_alone")
def test_one_number_that_differs_is_found(hub: FakeHub, tmp_path: Path) -> None:
    wrong = write_model(tmp_path / "wrong", "gpt2")
    with open(wrong / "model.safetensors", "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(8 + length + json.loads(file.read(length))["wpe.weight"]["data_offsets"][0])
        file.write(np.float32(-0.0189).tobytes())  # printed: -0.01882071979343891
    hub.add("gpt2", {path.name: path for path in wrong.iterdir()}, GPT2.commit)
    report = verify_seed(GPT2)
    assert report.ran and not report.passed
    assert [checked.key for checked in report.checked if not checked.passes] == ["wpe"]


def test_other_sizes_are_no_pass(hub: FakeHub, folders: dict[str, Path]) -> None:
    files = {path.name: path for path in folders["gpt2"].iterdir()}
    hub.add(BERT.model, files, BERT.commit)
    report = verify_seed(BERT)
    assert report.ran and not report.passed and "its sizes are not those" in report.lines[-1]


def test_without_a_network_nothing_is_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_one_that_cannot_be_had_is_not_covered_by_the_other(
    file: str, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the Hub fails halfway, after the config."""
    hub.misbehave(rf"gpt2/.*{file}", status(503))
    assert main(["verify", "--seeds"]) == NO_HUB
    assert capsys.readouterr().out.splitlines()[-2:] == ["bert-base-uncased: passed", "gpt2: not run here"]


def test_a_difference_says_more_than_what_was_not_run(hub: FakeHub) -> None:
    hub.misbehave("gpt2/", status(503))
    assert main(["verify", "--seeds"]) == 1


@pytest.mark.parametrize("other", [["gpt2"], ["-m", "gpt2"], ["--texts", "a"], ["--revision", "main"]])
def test_it_names_its_own_models(other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--seeds", *other]) == 2
    assert "--seeds names its own models and commits" in capsys.readouterr().err
