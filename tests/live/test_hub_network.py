"""The real Hub, lazily: what others have printed of two well-known models, for about a megabyte each.

pytest -m network
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_hub import use

import minibert
from minibert.cli import main
from minibert.hub import caches
from minibert.verify.sides import printed

MOST = 1_000_000  # bytes of header, rows and small tensors; config and tokenizer come on top


@pytest.mark.network
def test_the_command_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    use(monkeypatch, constants.ENDPOINT, tmp_path)
    assert main(["verify", "--seeds"]) == 0, capsys.readouterr().out


@pytest.mark.network
@pytest.mark.parametrize("name", ["bert-base-uncased", "gpt2"])
def test_the_real_hub_gives_the_printed_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    use(monkeypatch, constants.ENDPOINT, tmp_path)  # an empty cache: a whole file on this machine would prove less
    layer = minibert.load(name, lazy=True)
    stored = printed.find(name, layer)
    assert stored is not None
    assert printed.check_texts(layer, stored) == []
    checked = printed.check(layer, stored)
    assert sum(found.numbers for found in checked) > 50
    assert [found for found in checked if not found.passes] == []
    kept = sum(path.stat().st_size for path in caches.cache_root().rglob("*") if path.is_file())
    assert 0 < kept < MOST
    again = minibert.load(name, lazy=True, local_files_only=True)
    assert printed.check(again, stored) == checked
