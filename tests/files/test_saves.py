"""Files as they occur: every save of the reference's that the tiny checkpoints do not already show, made from them.

The rule throughout: another way to store the same tensors gives the same bits. Formats of numbers, gamma and beta,
buffers and shards of the simplest model are in test_checkpoint.py; here are families with more than one table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from reference_files import BY_NAME, CASES, Case
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.steps import Tokens

Tensors = dict[str, Array]
SHARED = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def stored(case: Case) -> Tensors:
    return load_file(case.folder / "model.safetensors")


def write(folder: Path, case: Case, tensors: Tensors, **config: Any) -> Path:
    whole = json.loads((case.folder / "config.json").read_text(encoding="utf-8"))
    return checkpoints.write(folder, whole | config, tensors)


def passes(folder: Path, case: Case, tensors: Tensors, **config: Any) -> bool:
    """Whether the layer of a folder of these tensors gives what the reference gave for the case."""
    with minibert.load(write(folder, case, tensors, **config), side=case.side) as layer:
        return all(d.passes for d in case.differences(layer))


# -- tied tensors --------------------------------------------------------------------------------------------------

TIED = [BY_NAME[name] for name in ("bart-encoder", "bart-decoder", "mbart-decoder", "t5-encoder", "t5-decoder",
                                   "marian-encoder", "marian-decoder", "pegasus-decoder", "mt5-decoder")]  # fmt: skip


def prefix_of(tensors: Tensors) -> str:
    """The words that a head model's file puts before each name of its base."""
    return "model." if any(name.startswith("model.") for name in tensors) else ""


@pytest.mark.parametrize("survivor", [*SHARED, "lm_head.weight"])
@pytest.mark.parametrize("case", TIED, ids=str)
def test_any_member_of_a_tied_group_may_be_the_one_stored(case: Case, survivor: str, tmp_path: Path) -> None:
    tensors = stored(case)
    prefix = prefix_of(tensors)
    table = tensors.pop(f"{prefix}shared.weight")
    place = survivor if survivor == "lm_head.weight" else prefix + survivor
    assert passes(tmp_path / "one", case, {**tensors, place: table})
    with pytest.raises(CheckpointError, match=r"'\w+\.embed_tokens\.weight'"):
        minibert.load(write(tmp_path / "none", case, tensors), side=case.side)


HEADS = ["opt", "whisper-head", "llama-head", "xlnet-head", "distilbert-head", "bert-head", "electra-equal"]


@pytest.mark.parametrize("name", [*HEADS, "gpt2", "gpt_neo", "openai-gpt", "xlm"])  # the last four take types from it
def test_the_output_layer_s_twin_may_be_the_one_stored(name: str, tmp_path: Path) -> None:
    """OPT from only lm_head, and so on; where the config says that the two are tied."""
    case, tensors = BY_NAME[name], stored(BY_NAME[name])
    row = minibert.FAMILIES[case.facts["family"]]
    tokens = row.steps_for(case.side)[0]
    assert isinstance(tokens, Tokens)
    (words,) = {prefix + tokens.tensors()[0] for prefix in ("", *row.prefixes)} & set(tensors)
    tensors[tokens.head] = tensors.pop(words)
    assert passes(tmp_path / "tied", case, tensors, tie_word_embeddings=True)
    with pytest.raises(CheckpointError):
        minibert.load(write(tmp_path / "untied", case, tensors, tie_word_embeddings=False), side=case.side)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_tables_that_are_not_tied_stay_apart(side: str, tmp_path: Path) -> None:
    case = BY_NAME[f"bart-untied-{side}"]
    tensors = stored(case)
    own, shared = (f"{prefix_of(tensors)}{name}" for name in (f"{side}.embed_tokens.weight", SHARED[0]))
    assert {prefix_of(tensors) + name for name in SHARED} <= set(tensors)
    assert passes(tmp_path / "as it is", case, tensors)
    assert passes(tmp_path / "shared", case, tensors | {shared: np.full_like(tensors[shared], 7)})
    assert not passes(tmp_path / "own", case, tensors | {own: tensors[shared]})
    # two names that are both stored and differ, whatever the config says of tying
    case = BY_NAME[f"bart-{side}"]
    tensors = stored(case)
    tensors |= {own: tensors[shared], shared: np.full_like(tensors[shared], 7)}
    assert passes(tmp_path / "both", case, tensors, tie_word_embeddings=True)
    # as madlad400-3b-mt's file: decoder.embed_tokens and a different lm_head, no `shared`; the encoder takes the other
    # side's words, never the output's
    case = BY_NAME[f"t5-{side}"]
    tensors = stored(case)
    table = tensors.pop("shared.weight")
    tensors |= {"decoder.embed_tokens.weight": table, "lm_head.weight": np.full_like(table, 7)}
    assert passes(tmp_path / "output", case, tensors, tie_word_embeddings=False)


@pytest.mark.parametrize("name", ["marian-encoder", "marian-decoder", "pegasus-encoder", "pegasus-decoder"])
def test_sinusoids_may_be_stored_or_not(name: str, tmp_path: Path) -> None:
    """MarianMTModel does not store them; they are made to the bit. A table that is stored is used as it is."""
    case, tensors = BY_NAME[name], stored(BY_NAME[name])
    without = {name: array for name, array in tensors.items() if "embed_positions" not in name}
    assert passes(tmp_path / "without", case, without)
    with minibert.load(case.folder, side=case.side) as layer:
        table = np.array(layer.embed_positions.weight)
    place = f"{prefix_of(tensors)}{case.side}.embed_positions.weight"
    assert passes(tmp_path / "with", case, {**without, place: table})
    assert not passes(tmp_path / "other", case, {**without, place: table + 1})


# -- names and buffers ---------------------------------------------------------------------------------------------

NORMED = [case for case in CASES if any("LayerNorm" in name for name in stored(case))]


@pytest.mark.parametrize("case", NORMED, ids=str)
def test_gamma_and_beta_in_every_family_that_has_a_norm_of_this_name(case: Case, tmp_path: Path) -> None:
    older = {
        re.sub(r"(embeddings\..*LayerNorm\.)weight$", r"\1gamma", name): array for name, array in stored(case).items()
    }
    tensors = {re.sub(r"(embeddings\..*LayerNorm\.)bias$", r"\1beta", name): array for name, array in older.items()}
    assert any(name.endswith(".gamma") for name in tensors)
    assert passes(tmp_path, case, tensors)


CROSS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
BUFFERS: dict[str, Tensors] = {
    "bert-head": {"bert.embeddings.position_ids": np.arange(16)[None]},
    "gpt2-head": {
        "transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.uint8),
        "transformer.h.0.attn.masked_bias": np.array(-1e4, np.float32),
    },
    "openai-gpt": {"position_ids": np.arange(16)[None]},
    "t5-decoder": {CROSS: np.ones((32, 2), np.float32)},
    # which the config does not use
    "deberta-v2-unbiased": {"deberta.embeddings.position_embeddings.weight": np.ones((16, 16), np.float32)},
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_of_older_files_are_no_parameters(name: str, tmp_path: Path) -> None:
    case, tensors = BY_NAME[name], stored(BY_NAME[name])
    assert not set(BUFFERS[name]) & set(tensors)
    assert passes(tmp_path, case, tensors | BUFFERS[name])


PREFIXED = [case for case in CASES if minibert.FAMILIES[case.facts["family"]].prefixes]


@pytest.mark.parametrize("case", PREFIXED, ids=str)
def test_base_and_head_saves_are_one(case: Case, tmp_path: Path) -> None:
    prefix = minibert.FAMILIES[case.facts["family"]].prefixes[0]
    bare = {name.removeprefix(prefix): array for name, array in stored(case).items()}
    assert passes(tmp_path / "base", case, bare)
    assert passes(tmp_path / "head", case, {prefix + name: array for name, array in bare.items()})
