"""What `minibert info` tells of the blocks: from config.json and headers alone, no weight is read or fetched."""

from __future__ import annotations

import re
from pathlib import Path

import checkpoints
import encoders
import numpy as np
import pytest
from fake_hub import FakeHub, use
from reference_files import REFERENCE

import minibert
from minibert.show.text.info import info


def told_of(layer: minibert.EmbeddingLayer) -> dict[str, str]:
    """The lines under the module tree: name -> fact."""
    lines = list(info(layer))
    return {line[:18].strip(): line[18:].strip() for line in lines[lines.index("") + 1 :]}


def facts(folder: Path) -> dict[str, str]:
    with minibert.load(folder) as layer:
        return told_of(layer)


INSIDE = ("encoder.", "transformer.", "h.", "ln_f.", "layers.", "norm.", "final_norm.", "final_layer_norm.")
ACTIVATION = {
    **dict.fromkeys((*encoders.T5_LIKE, "gpt2", "albert"), "gelu_new"), "gemma3_text": "gelu_pytorch_tanh",
    "clip_text_model": "quick_gelu",
    **dict.fromkeys(("nomic_bert", "llama", "mistral", "qwen2", "qwen3", "eurobert"), "silu"),
}  # fmt: skip


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_every_row_with_blocks(name: str, tmp_path: Path) -> None:
    told = facts(encoders.write(tmp_path / name, name))
    activation = ACTIVATION.get(name, "gelu")
    given = encoders.CONFIGS[name]
    width = given.get("head_dim", given.get("d_kv", 4))
    heads = f"{width}" + " that share 2 key heads" * bool(given.get("num_key_value_heads"))
    assert told["blocks"] == f"2, 4 heads of {heads}, feed-forward 24 wide, {activation}"
    made = encoders.tensors(encoders.config(name))
    blocks = {
        key: array
        for key, array in made.items()
        if key.startswith(INSIDE) and not re.search("mapping|encoder.embed|layernorm_emb", key)
    }
    size = sum(array.nbytes for array in blocks.values())
    assert told["blocks on disk"] == f"{size / 1000:.1f} kB in {len(blocks)} tensors"


def test_a_head_model_s_prefix_and_gpt2_s_stored_masks(tmp_path: Path) -> None:
    settings = encoders.config("gpt2", n_inner=None)
    named = {f"transformer.{key}": array for key, array in encoders.tensors(settings).items()}
    count = sum(key.startswith(("transformer.h.", "transformer.ln_f.")) for key in named)
    masks = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 24, 24), np.float32) for i in range(2)}
    told = facts(checkpoints.write(tmp_path, settings, named | masks))
    assert told["blocks"] == "2, 4 heads of 4, feed-forward 64 wide, gelu_new"
    assert told["blocks on disk"].endswith(f" in {count} tensors")


def test_a_model_type_without_blocks_says_so() -> None:
    told = facts(REFERENCE / "xlnet")
    assert told["blocks"] == "not computed: minibert knows only the input layer of xlnet"
    assert "blocks on disk" not in told


def test_a_file_that_holds_the_input_layer_alone(tmp_path: Path) -> None:
    settings = encoders.config("bert")
    named = {key: array for key, array in encoders.tensors(settings).items() if key.startswith("embeddings.")}
    told = facts(checkpoints.write(tmp_path, settings, named))
    assert told["blocks"].startswith("2, 4 heads of 4, ") and told["blocks"].endswith("only the input layer")
    assert "blocks on disk" not in told


def test_a_config_that_blocks_cannot_be_made_of_is_no_error(tmp_path: Path) -> None:
    """The input layer needs none of it."""
    for changes, says in (
        ({"num_attention_heads": 5}, "must be a multiple of 'num_attention_heads'"),
        ({"add_cross_attention": True}, "add_cross_attention"),
    ):
        settings = encoders.config("bert", **changes)
        told = facts(checkpoints.write(tmp_path, settings, encoders.tensors(encoders.config("bert"))))
        assert told["blocks"].startswith("not available: config.json: ") and says in told["blocks"]


def test_shards_that_are_not_opened_stay_so(tmp_path: Path) -> None:
    settings = encoders.config("bert")
    named = encoders.tensors(settings)
    first = {key: array for key, array in named.items() if not key.startswith("encoder.layer.1")}
    second = {key: array for key, array in named.items() if key not in first}
    folder = checkpoints.write_shards(tmp_path, settings, [first, second])
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
