"""The real Hub, lazily: what others have printed of two well-known models, for about a megabyte each.

pytest -m network
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_hub import use

import minibert
from minibert.cli import main
from minibert.verify.seeds import SEEDS
from minibert.verify.sides import printed

MOST = 1_000_000  # bytes of one model's header, rows, small tensors, config and tokenizer


@pytest.mark.network
def test_the_real_hub_gives_the_printed_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    use(monkeypatch, constants.ENDPOINT, tmp_path)  # an empty cache: a whole file on this machine would prove less
    for more in ([], ["--local-files-only"]):
        assert main(["verify", "--seeds", *more]) == 0, capsys.readouterr().out
    kept = sum(path.stat().st_size for path in (tmp_path / "assets").rglob("*") if path.is_file())
    assert 0 < kept < MOST * len(SEEDS)
    bert = SEEDS[0]
    values = json.loads((printed.DATA / f"{bert.model}.json").read_text(encoding="utf-8"))
    with minibert.load(bert.model, revision=bert.commit, lazy=True, local_files_only=True) as layer:
        assert repr(layer) == values["tree"]
