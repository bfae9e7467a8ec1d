"""Each value of a config left out, one by one: the blocks are those of the reference's class without it.

tests/reference/defaults.json has the defaults of every row, those too that a small model does not show.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert
from minibert.families.rows import BLOCKS

pytestmark = pytest.mark.reference

ROWS = 5e-5  # relative to max(1, |reference|); measured 2.8e-5 in seven blocks with 32 heads of 256, else 4.8e-6
LENGTH = 20  # longer than the windows
# sizes without which a file is refused
SIZES = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "dim", "n_layers",
    "n_heads", "hidden_dim", "n_embd", "n_layer", "n_head", "n_positions", "d_model", "num_layers", "num_heads", "d_ff",
    *(f"{side}_{key}" for side in ("encoder", "decoder") for key in ("layers", "attention_heads", "ffn_dim")),
}  # fmt: skip
# what the configs of other tests leave to the defaults
DECODER = {"is_decoder": True}
ROTARY = {"rope_theta": 50.0, "attention_bias": True, "mlp_bias": True}
LAYERED = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), DECODER),
    "ernie": {**DECODER, "use_task_id": True, "task_type_vocab_size": 4},
    "gpt2": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "is_causal": False},
    "albert": {"num_hidden_groups": 2, "inner_group_num": 2},
    "modernbert": {
        "norm_bias": True, "attention_bias": True, "mlp_bias": True, "global_rope_theta": 50.0,
        "local_rope_theta": 20.0, "vocab_size": 50_300, "num_hidden_layers": 5,
    },
    "deberta-v2": {"conv_act": "gelu", "max_relative_positions": 9, "pos_att_type": "C2P | p2c"},
    "marian": {"vocab_size": 58_200},
    "nomic_bert": {"rope_theta": 50.0, "head_dim": 6},
    "gte": {"rope_theta": 50.0, "head_dim": 6, "type_vocab_size": 2},
    "jina_embeddings_v3": {"rope_theta": 50.0, "head_dim": 6, "type_vocab_size": 2},
    "llama": ROTARY,
    "mistral": ROTARY,
    "qwen2": ROTARY | LAYERED,
    "qwen3": ROTARY | LAYERED,
    "eurobert": {**ROTARY, "vocab_size": 128_010},  # its default id of padding is in the table
    "gemma3_text": {
        **ROTARY, "rope_local_base_freq": 20.0, "sliding_window_pattern": 2, "is_causal": False, "layer_types": None,
        "num_hidden_layers": 7,
    },
}  # fmt: skip


def settings(name: str) -> dict[str, Any]:
    """One row's config.json, with as many heads as the defaults share."""
    many = {"num_attention_heads": 32, "hidden_size": 64} if name in encoders.LLAMA_LIKE else {}
    return encoders.config(name, **MORE.get(name, {}), **many)


ROWS_ALONE = [
    name for name in BLOCKS if name != "clip"
]  # whose texts have clip_text_model's settings, and which takes pictures too
LEFT_OUT = [(name, key) for name in ROWS_ALONE for key in settings(name) if key not in {*SIZES, "model_type"}]


@pytest.mark.parametrize(("name", "key"), LEFT_OUT, ids=str)
def test_without_one_value(name: str, key: str, tmp_path: Path) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = {known: value for known, value in settings(name).items() if known != key}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 3)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    model = model.get_encoder() if hasattr(model, "decoder") else model
    ids = np.random.default_rng(0).integers(2, config["vocab_size"], (2, LENGTH))
    mask = np.ones_like(ids)
    mask[1, -5:] = 0
    with torch.no_grad(), minibert.load_encoder(tmp_path) as encoder:
        theirs = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        assert off(encoder(ids, attention_mask=mask)[mask != 0], theirs.numpy()[mask != 0]) <= ROWS
