"""The lines of `minibert info`: about the blocks from config.json and headers alone; the identity reads the weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
from command_line import ran
from fake_hub import FakeHub, use
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.show.info import info


def told_of(layer: minibert.EmbeddingLayer) -> dict[str, str]:
    """The lines under the modules: name -> fact."""
    lines = list(info(layer))
    return {line[:18].strip(): line[18:].strip() for line in lines[lines.index("") + 1 :]}


def facts(folder: Path) -> dict[str, str]:
    with minibert.load(folder) as layer:
        return told_of(layer)


BERT, GPT2 = encoders.config("bert"), encoders.config("gpt2", n_inner=None)
QWEN3 = encoders.config("qwen3")
NAMED = encoders.tensors(BERT)
PREFIXED = {f"transformer.{key}": array for key, array in encoders.tensors(GPT2).items()}
MASKS = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 24, 24), np.float32) for i in range(2)}  # GPT-2 stores them
COUNT = sum(key.startswith(("transformer.h.", "transformer.ln_f.")) for key in PREFIXED)


@pytest.mark.parametrize(
    ("config", "tensors", "blocks", "on_disk"),
    [
        (GPT2, PREFIXED | MASKS, "2, 4 heads of 4, feed-forward 64 wide, gelu_new$", f" in {COUNT} tensors"),
        (BERT, {key: NAMED[key] for key in NAMED if key.startswith("embeddings.")},
         "2, 4 heads of 4, .* only the input layer$", None),
        (QWEN3, encoders.tensors(QWEN3), "2, 4 heads of 8 that share 2 key heads, feed-forward 24 wide, silu$",
         " in 23 tensors"),
        # blocks cannot be made of these, and the input layer needs none of it
        (BERT | {"num_attention_heads": 5}, NAMED,
         "not available: config.json: .*must be a multiple of 'num_attention_heads'", None),
        (BERT | {"add_cross_attention": True}, NAMED, "not available: config.json: .*add_cross_attention", None),
    ],
)  # fmt: skip
def test_what_is_told(
    config: dict[str, Any], tensors: dict[str, Array], blocks: str, on_disk: str | None, tmp_path: Path
) -> None:
    told = facts(checkpoints.write(tmp_path, config, tensors))
    assert re.match(blocks, told["blocks"])
    assert on_disk is None if "blocks on disk" not in told else told["blocks on disk"].endswith(str(on_disk))


def test_a_model_type_without_blocks_says_so() -> None:
    told = facts(REFERENCE / "xlnet")
    assert told["blocks"] == "not computed: minibert knows only the input layer of xlnet"
    assert "blocks on disk" not in told


def test_shards_that_are_not_opened_stay_so(tmp_path: Path) -> None:
    first = {key: array for key, array in NAMED.items() if not key.startswith("encoder.layer.1")}
    second = {key: array for key, array in NAMED.items() if key not in first}
    folder = checkpoints.write_shards(tmp_path, BERT, [first, second])
    (folder / "model-00002-of-00002.safetensors").unlink()
    says = " in 16 tensors; 32 tensors in all, some in files not opened for this"
    assert facts(folder)["blocks on disk"].endswith(says)


def test_from_the_hub_nothing_is_fetched_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = encoders.write(tmp_path / "tiny", "bert")
    with FakeHub() as hub:
        hub.add("someone/tiny", {path.name: path for path in folder.iterdir()})
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        with minibert.load("someone/tiny", lazy=True) as layer:
            layer.tokenizer.size  # noqa: B018  opened here, so that the rest of the page is all that could be fetched
            layer.attention_position  # noqa: B018
            before, sent = len(hub.requests), hub.sent
            told = told_of(layer)
            assert (len(hub.requests), hub.sent) == (before, sent)
    assert told["blocks on disk"].endswith(" in 32 tensors")


def test_the_identity_and_the_same_lines_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = REFERENCE / "sentences-dense"
    out, error = ran(capsys, "info", folder)
    lines, found = out.splitlines(), json.loads(ran(capsys, "info", folder, "--json")[0])
    start = lines.index("") + 1
    assert found["identity"] == minibert.load_encoder(folder).identity and not error
    modules = [[path, sizes] for path, sizes in found.pop("modules").items()]
    assert [re.split(" {2,}", line) for line in lines[: start - 1]] == modules
    assert [re.split(" {2,}", line, maxsplit=1) for line in lines[start:]] == [
        [name.replace("_", " "), fact] for name, fact in found.items()
    ]
    assert main(["help", "info"]) == 0
    about = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", about) for name in found)


def test_an_identity_that_cannot_be_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.write(tmp_path / "model", BERT | {"num_attention_heads": 5}, NAMED)
    assert re.search("\nidentity +not available: .*must be a multiple", ran(capsys, "info", folder)[0])
    with FakeHub() as hub:
        hub.add("org/model", {path.name: path for path in encoders.write(tmp_path / "hub", "bert").iterdir()})
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        for _ in range(2):
            text = ran(capsys, "info", "org/model")[0]
            assert "identity" in text and "computed from all weights, and they are not on this machine" in text
        minibert.load_encoder("org/model").close()
        assert re.search("\nidentity +[0-9a-f]{64}\n", ran(capsys, "info", "org/model")[0])
