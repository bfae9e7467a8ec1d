"""Every row of the families table against what the reference computes: on tiny checkpoints of each family, on BERT's
and GPT-2's own sizes, and on a published model. Gemma's factor and the activations by themselves.

Before a norm or a projection nothing may differ. Keys and sides are the reference's too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeded
from checkpoints import change_json, write
from encoder_files import off
from reference_files import BY_NAME, CASES, REFERENCE, Case
from safetensors.numpy import load_file

import minibert
from minibert.equations import activations
from minibert.errors import CheckpointError
from minibert.families.parts import attention_schemes as schemes
from minibert.families.parts.bound_blocks import ACTIVATIONS
from minibert.families.parts.modules import LayerNorm
from minibert.families.parts.steps import Lookup, Norm, Project
from minibert.models.run import packing
from minibert.verify.report import rms
from minibert.verify.subjects import tolerances, trace

# |difference| / max(1, |reference|) after a norm or a projection. Measured: 4.6e-7 over the tiny checkpoints (after
# DeBERTa's projection and norm), 2.7e-7 in the stored rows of full size, where outputs reach 27
AFTER_NORM = 2e-6
ERROR_SHARE = 1.05  # our root mean square error against float64, as a share of the reference's own: 0.89 to 1.00

ROTATED = (
    "nomic_bert", "modernbert", "gpt_neox", "llama", "mistral", "ministral3", "qwen2", "qwen3", "mixtral", "olmo2",
    "phi3", "granite", "embedding_gemma2", "embedding_gemma2_text", "cohere2", "gemma", "gemma2", "gemma3_text", "gte",
    "jina_embeddings_v3", "eurobert", "ultrabert",
)  # fmt: skip
SCHEMES = {
    **dict.fromkeys(("mpnet", "t5", "mt5", "umt5"), schemes.RelativeBias), **dict.fromkeys(ROTATED, schemes.Rotary),
    "bloom": schemes.Alibi, "deberta-v2-unbiased": schemes.LogBuckets,  # the case with relative_attention
}  # fmt: skip

every_case = pytest.mark.parametrize("case", CASES, ids=str)


# -- tiny checkpoints of every family ------------------------------------------------------------------------------


def test_every_row_has_a_reference_and_every_reference_a_row() -> None:
    asked = {(case.facts["family"], case.side) for case in CASES}
    rows = {(name, side) for name, row in minibert.FAMILIES.items() for side in row.sides}
    assert rows - asked == set(), "make a case in scripts/reference/cases.py, then run scripts/reference/make.py"
    assert asked - rows == set()
    assert len(CASES) >= 74 and len(minibert.FAMILIES) >= 42  # a glob that finds nothing would pass all the rest


@every_case
def test_every_intermediate_is_the_reference_s(case: Case) -> None:
    """The tolerance is not handed out by name: integers, rows and sums before the first norm have none."""
    with case.layer() as layer:
        found, allowed = case.differences(layer), tolerances(layer)
        rounding = [step.path for step, _ in layer.steps if isinstance(step, Norm | Project)]
        rows = [step.path for step, _ in layer.steps if isinstance(step, Lookup)]
    assert {kind for d in found for kind in d.kinds} == set(case.facts["kinds"])
    assert [d for d in found if not d.passes] == []
    assert {d.tolerance for d in found} <= {0.0, AFTER_NORM}
    assert all(allowed[path] == AFTER_NORM for path in rounding)
    assert all(allowed[path] == 0 for path in (*rows, "position_ids"))
    assert bool(rounding) == (AFTER_NORM in allowed.values())
    assert (allowed["sum"] > 0) == (case.name in ("deberta-v2", "opt-project")), "projected first"


@every_case
def test_a_trace_and_a_call_are_in_the_reference_s_form(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names and dtypes, the derived integers first, the output last, which is what a call gives.

    So does a trace that gets the positions of the first one back, those that OPT gives masked tokens, -1, too. Each
    sequence alone and the whole batch in tiles, on two threads, give the same bits, projections too.
    """
    inputs, theirs = case.read
    with case.layer() as layer:
        widest = max(layer.dim, layer.steps[0].module.table.shape[1])
        for kind, batch in inputs.items():
            traced = trace(layer, batch)
            *_, last = keys = list(traced)
            for key, ours in traced.items():
                want = np.int64 if key == "position_ids" else np.float32
                assert ours.dtype == theirs[kind][key].dtype == want, (kind, key)
            assert set(keys) == set(case.facts["order"][kind]), kind
            assert last == case.facts["order"][kind][-1], kind
            assert "sum" in keys
            if "position_ids" in keys:
                assert keys[0] == "position_ids"
                again = trace(layer, {**batch, "position_ids": traced["position_ids"]})
                assert again[last].tobytes() == traced[last].tobytes(), kind
            assert traced[last].shape == theirs[kind][last].shape, kind
            keywords = {name: array for name, array in batch.items() if name != "past_length"}
            past = int(batch.get("past_length", np.array(0)).item())
            for tokens_a_tile, threads in ((1 << 20, 1), *product((1, 3, 5), (1, 2))):
                monkeypatch.setattr(packing, "TILE_NUMBERS", tokens_a_tile * widest)
                assert layer(**keywords, past_length=past, threads=threads).tobytes() == traced[last].tobytes(), kind
            for i, alone in enumerate(traced[last]):
                one = {name: array[i : i + 1] for name, array in keywords.items()}
                assert layer(**one, past_length=past)[0].tobytes() == alone.tobytes(), (kind, i)


def test_cached_tokens_and_masked_ones() -> None:
    """MPNet counts no token that is cached, OPT's mask covers them; its positions begin at that of a masked token."""
    with minibert.load(REFERENCE / "mpnet") as layer:
        assert layer([[5, 6, 7]], past_length=2).tobytes() == layer([[5, 6, 7]]).tobytes()
    with minibert.load(REFERENCE / "opt") as layer:
        with pytest.raises(ValueError, match=r"\(1, 5\)"):
            layer([[5, 6, 7]], attention_mask=[[1, 1, 1]], past_length=2)
        wrong: np.integer[Any]
        for wrong, first in ((np.int64(-2), -1), (np.int8(16), -1), (np.uint64(2**64 - 1), 0)):  # with the bits of -1
            with pytest.raises(IndexError, match=rf"^position_ids\[0, 2\] .* {wrong}\b.* {first}\.\."):
                layer([[5, 6, 7]], position_ids=np.array([[0, 1, wrong]], wrong.dtype))


@every_case
def test_position_scheme_of_attention(case: Case) -> None:
    with case.layer() as layer:
        if case.facts["family"] == "xlnet":
            with pytest.raises(CheckpointError):
                layer.attention_position  # noqa: B018
            return
        scheme = layer.attention_position
        assert type(scheme) is SCHEMES.get(case.name, SCHEMES.get(case.facts["family"], type(None)))
        if isinstance(scheme, schemes.RelativeBias):
            assert scheme.relative_bias(3, 5).shape == (layer.config["num_attention_heads"], 3, 5)
            assert scheme.bidirectional == (case.side == "encoder")


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "albert", "ernie"])
def test_positions_of_another_kind_are_refused(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(BY_NAME[name].folder, tmp_path / name)
    for kind in ("absolute", None, "relative_key", "rotary"):
        change_json(folder / "config.json", position_embedding_type=kind)
        if kind in ("absolute", None):
            minibert.load(folder).close()
            continue
        says = f"'position_embedding_type' must be 'absolute' for {name}, found '{kind}'"
        with pytest.raises(CheckpointError, match=says):
            minibert.load(folder)


# -- full size -----------------------------------------------------------------------------------------------------

FULL_SIZE: dict[str, Any] = json.loads((REFERENCE / "full_size.json").read_text(encoding="utf-8"))
ROWS = load_file(REFERENCE / "full_size.safetensors")
LONGEST = {"bert": 512, "gpt2": 1024, "minilm": 512}


@pytest.fixture(scope="module", params=sorted(LONGEST))
def full_size(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Name and folder of a model with a published model's sizes."""
    name: str = request.param
    if name == "minilm":
        return name, request.getfixturevalue("minilm")
    return name, seeded.write_model(tmp_path_factory.mktemp("seeded") / name, name)


@pytest.mark.parametrize("kind", seeded.BATCHES)
def test_full_size(full_size: tuple[str, Path], kind: str) -> None:
    """The sum to the bit; whole rows of the output; and no more rounding than the reference's own."""
    name, folder = full_size
    facts = FULL_SIZE[name]["batches"][kind]
    with minibert.load(folder) as layer, minibert.load(folder, dtype="float64") as exact:
        batch = seeded.batch(kind, layer.steps[0].module.table.shape[0], LONGEST[name])
        assert batch["input_ids"].size >= 1000
        got, truth = layer.trace(**batch), exact(**batch)
    total, output = got["sum"], list(got.values())[-1]
    assert list(output.shape) == facts["shape"]
    assert hashlib.sha256(total.astype("<f4").tobytes()).hexdigest() == facts["sum_sha256"]
    rows = np.stack([output[tuple(index)] for index in facts["output_rows"]])
    assert off(rows, ROWS[f"{name}|{kind}|output"]) <= (AFTER_NORM if name != "gpt2" else 0)
    assert rms(output - truth) <= ERROR_SHARE * facts["rms_error"]


@pytest.mark.parametrize("number", sorted(FULL_SIZE["minilm"]["texts"]))
def test_texts_on_a_published_model(minilm: Path, number: str) -> None:
    facts = FULL_SIZE["minilm"]["texts"][number]
    names = {name: f"embeddings.{name}_embeddings" for name in ("word", "token_type", "position")}
    names |= {"sum": "sum", "output": "embeddings.LayerNorm"}
    with minibert.load(minilm) as layer:
        batch = layer.tokenize(facts["text"])
        assert batch["input_ids"][0].tolist() == facts["input_ids"]
        assert layer.tokens(batch["input_ids"][0]) == facts["tokens"]
        got = layer.trace(**batch)
        assert set(got) == {"position_ids", *names.values()}
        for short, key in names.items():
            want = ROWS[f"minilm|text {number}|{short}"]
            ours = np.broadcast_to(got[key][0] if facts["whole"] else got[key][0, 1:2], want.shape)
            assert off(ours, want) <= (AFTER_NORM if short == "output" else 0), key
        norm = layer["embeddings.LayerNorm"]
        assert isinstance(norm, LayerNorm) and norm.eps == 1e-12


# -- Gemma's factor ------------------------------------------------------------------------------------------------

WIDTH = 3072  # Gemma 7B: sqrt(3072) = 55.4256..., of which bfloat16 would make 55.5
# the numbers 1, -0.1 and 0.3 as each format holds them, and the bits that the reference, transformers 5.23, makes of
# them when it is told to load such a file in float32
FACTOR = {
    "BF16": ([0x3F80, 0xBDCD, 0x3E9A], [0x425DB3D7, 0xC0B18903, 0x41855E2F]),
    "F16": ([0x3C00, 0xAE66, 0x34CD], [0x425DB3D7, 0xC0B15196, 0x41850B0C]),
    "F32": ([0x3F800000, 0xBDCCCCCD, 0x3E99999A], [0x425DB3D7, 0xC0B15CAC, 0x41850581]),
}


@pytest.mark.parametrize("stored", FACTOR)
@pytest.mark.parametrize("family", ["gemma", "gemma2", "gemma3_text"])
def test_gemma_s_factor_is_a_float32_number_whatever_a_file_stores(tmp_path: Path, family: str, stored: str) -> None:
    numbers, bits = FACTOR[stored]
    row = np.resize(np.array(numbers, np.uint32 if stored == "F32" else np.uint16), WIDTH)
    config = {"model_type": family, "vocab_size": 1, "hidden_size": WIDTH, "num_attention_heads": 16}
    write(tmp_path, config, {"model.embed_tokens.weight": (stored, (1, WIDTH), row.tobytes())})
    with minibert.load(tmp_path) as layer, minibert.load(tmp_path, dtype="float64") as exact:
        row, called = layer([[0]])[0, 0], layer.embed_tokens([0])[0]
        assert row[:3].view(np.uint32).tolist() == bits
        assert row.tobytes() == called.tobytes()
        np.testing.assert_array_equal(exact([[0]])[0, 0], exact.embed_tokens.weight[0] * WIDTH**0.5)


# -- activations, by the config's words --------------------------------------------------------------------------------

# formula -> the words by which transformers 5.23 knows it; what each formula gives: tests/equations/test_blocks.py
WORDS = {
    activations.gelu: "gelu gelu_python", activations.relu: "relu", activations.silu: "silu swish",
    activations.gelu_tanh: "gelu_new gelu_fast gelu_accurate gelu_pytorch_tanh gelu_python_tanh",
    activations.quick_gelu: "quick_gelu", activations.tanh: "tanh", activations.relu6: "relu6",
    activations.leaky_relu: "leaky_relu", activations.sigmoid: "sigmoid", activations.identity: "linear",
}  # fmt: skip


def test_the_formula_of_each_word() -> None:
    assert dict(ACTIVATIONS) == {word: formula for formula, words in WORDS.items() for word in words.split()}
