"""A family of one's own in ten lines, with every kind of step, and what a wrong row is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from checkpoints import write

import minibert
from minibert.equations.input_layer import Array, layer_norm, lookup
from minibert.errors import CheckpointError
from minibert.families.parts.frozen import Frozen, replace
from minibert.families.parts.modules import LayerNorm
from minibert.families.parts.steps import (
    Add,
    Binder,
    Inputs,
    Norm,
    Positions,
    Project,
    Record,
    Scale,
    Step,
    Tokens,
    always,
)

EXAMPLE = """\
import minibert
from minibert.families.parts.steps import Norm, Positions, Tokens

mine = minibert.Family(
    model_type="mine",
    steps=(                     # in the order in which they are computed: it shows in the bits
        Tokens(path="tok"),     # x = tok.weight[input_ids]
        Positions(path="pos"),  # x = x + pos.weight[0, 1, 2, ...]
        Norm(path="ln"),        # x = (x - mean) / sqrt(variance + layer_norm_eps) * ln.weight + ln.bias
    ),
)
layer = minibert.load("./mine", family=mine)
"""

CONFIG = {
    "model_type": "mine",
    "vocab_size": 11,
    "hidden_size": 8,
    "max_position_embeddings": 6,
    "layer_norm_eps": 1e-5,
}
NORM_TOLERANCE = 4e-6  # between layouts, sums over a row may be taken in another order; measured 9.6e-7
IDS = np.array([[1, 2, 10, 0], [5, 5, 5, 5]])


def numbers(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.fixture
def tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Array]:
    """A checkpoint that no known family describes, in the folder ./mine."""
    monkeypatch.chdir(tmp_path)
    made = {"tok.weight": numbers(11, 8), "pos.weight": numbers(6, 8), "ln.weight": numbers(8), "ln.bias": numbers(8)}
    write(tmp_path / "mine", CONFIG, {**made, "blocks.0.attn.weight": numbers(2, 2)})
    return made


def test_the_example_runs(tensors: dict[str, Array]) -> None:
    space: dict[str, Any] = {}
    exec(compile(EXAMPLE, "example", "exec"), space)
    layer = space["layer"]
    total = lookup(tensors["tok.weight"], IDS) + tensors["pos.weight"][:4]
    want = layer_norm(total, tensors["ln.weight"], tensors["ln.bias"], 1e-5)
    assert layer(IDS).tobytes() == want.tobytes()
    assert list(layer.trace(IDS)) == ["position_ids", "tok", "pos", "sum", "ln"]
    assert repr(layer) == (
        "Module(\n  (tok): Embedding(11, 8)\n  (pos): Embedding(6, 8)\n"
        "  (ln): LayerNorm((8,), eps=1e-05, elementwise_affine=True)\n)"
    )
    assert layer.max_length == 6 and layer.config.hidden_size == 8
    assert "mine" not in minibert.FAMILIES


def test_an_unknown_model_type_shows_that_door(tensors: dict[str, Array]) -> None:
    with pytest.raises(minibert.UnknownFamilyError) as told:
        minibert.load("./mine")
    assert "model_type 'mine' is not known" in str(told.value)
    assert all(name in str(told.value) for name in minibert.FAMILIES)
    assert "load(..., family=Family(...)), see minibert/families/README.md" in str(told.value)


def test_every_kind_of_step_may_be_used(tmp_path: Path) -> None:
    """Types, a scale, a projection, RoBERTa's positions: the steps of known families are parts for others."""
    row = minibert.Family(
        model_type="mine",
        steps=(
            Tokens(path="tok", width="narrow"),
            Scale(factor=lambda config: 2.0),
            Add(path="kind", ids="token_type_ids", rows="kinds", width="narrow", missing=1),
            Project(path="up", source="narrow", biased=False),
            Positions(path="pos", rule="padding", padding_idx="pad_token_id", extra=1),
        ),
    )
    made = {"tok.weight": numbers(11, 4), "kind.weight": numbers(3, 4), "up.weight": numbers(8, 4)}
    made["pos.weight"] = numbers(9, 8)
    config = {**CONFIG, "narrow": 4, "kinds": 3, "pad_token_id": 0, "max_position_embeddings": 8}
    layer = minibert.load(write(tmp_path, config, made), family=row)
    narrow = made["tok.weight"][IDS] * np.float32(2) + made["kind.weight"][1]
    up = np.matmul(made["up.weight"], narrow[..., None])[..., 0]
    positions = np.array([[1, 2, 3, 0], [1, 2, 3, 4]])
    assert layer(IDS).tobytes() == (up + made["pos.weight"][positions + 1]).tobytes()
    assert list(layer.trace(IDS)) == ["position_ids", "tok", "scaled", "kind", "up", "pos", "sum"]


class Turned(Step):
    """Gives the rows it got, as another program may lay them out."""

    layout: str

    def bind(self, binder: Binder) -> None:
        return None

    def apply(self, module: None, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if self.layout == "float64":
            return x.astype(np.float64)
        if self.layout == "apart":
            return np.repeat(x, 2, axis=-1)[..., ::2]
        return np.asfortranarray(x)


@pytest.mark.parametrize("layout", ["fortran", "apart", "float64"])
def test_a_step_of_one_s_own_may_lay_rows_out_as_it_likes(tmp_path: Path, layout: str) -> None:
    """The norm after it, and a projection, give the same bits as after rows that lie one after another."""
    parts: tuple[Step, ...] = (Tokens(path="tok"), Positions(path="pos"))
    made = {"tok.weight": numbers(11, 96), "pos.weight": numbers(50, 96), "up.weight": numbers(96, 96)}
    made |= {"ln.weight": numbers(96), "ln.bias": numbers(96)}
    write(tmp_path, {**CONFIG, "hidden_size": 96, "embedding_size": 96, "max_position_embeddings": 50}, made)
    ends: tuple[tuple[Step, ...], ...] = ((Norm(path="ln"),), (Project(path="up", biased=False), Norm(path="ln")))
    for end in ends:
        ids = np.random.default_rng(0).integers(0, 11, (7, 50))  # more than a small tile
        turned, plain = (
            minibert.load(tmp_path, family=minibert.Family(model_type="mine", steps=steps, checked_prefixes=()))
            for steps in ((*parts, Turned(path="turned", layout=layout), *end), (*parts, *end))
        )
        assert turned(ids).tobytes() == plain(ids).tobytes()
        assert turned(ids[:1, :3]).tobytes() == plain(ids[:1, :3]).tobytes()
        assert turned.trace(ids)["ln"].tobytes() == plain(ids).tobytes()


@pytest.mark.parametrize("shape", [(2, 3, 96), (7, 50, 96)])
def test_a_norm_in_place_norms_rows_wherever_they_lie(shape: tuple[int, ...]) -> None:
    norm = LayerNorm(numbers(96), numbers(96), 1e-5)
    expected = norm(numbers(*shape))
    for x in (numbers(*shape), np.asfortranarray(numbers(*shape)), np.repeat(numbers(*shape), 2, axis=-1)[..., ::2]):
        norm.in_place(x)
        assert np.abs(x - expected).max() <= NORM_TOLERANCE


def test_a_row_that_does_not_fit_is_told_what_is_missing(tensors: dict[str, Array]) -> None:
    row = minibert.Family(model_type="mine", steps=(Tokens(path="token"), Positions(path="pos")))
    nearest = r"no tensor for 'token.weight'; .*the nearest name there is 'tok.weight'"
    with pytest.raises(CheckpointError, match=nearest):
        minibert.load("./mine", family=row)
    row = minibert.Family(model_type="mine", steps=(Tokens(path="tok"),), checked_prefixes=("pos.", "ln."))
    with pytest.raises(CheckpointError, match=r"does not use: ln.bias, ln.weight, pos.weight"):
        minibert.load("./mine", family=row)
    row = minibert.Family(model_type="mine", steps=(Tokens(path="tok", width="width"),))
    with pytest.raises(CheckpointError, match=r"^\./mine: config.json: 'width' must be an integer >= 0, found None"):
        minibert.load("./mine", family=row)


def test_a_step_with_a_field_too_many_or_too_few_is_refused() -> None:
    with pytest.raises(TypeError, match="a Positions has no ruel; its fields are path, names, when, ids"):
        Positions(path="pos", ruel="mask")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="a Tokens needs path; its fields are"):
        Tokens()  # type: ignore[call-arg]


def test_a_step_never_changes() -> None:
    step = minibert.FAMILIES["bert"].steps[0]
    with pytest.raises(AttributeError, match="a Tokens never changes"):
        step.path = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="a Tokens never changes"):
        del step.path
    changed = replace(step, path="other")
    assert (step.path, changed.path) == ("embeddings.word_embeddings", "other")
    assert (type(changed), changed.names, changed.when) == (Tokens, step.names, step.when)


class Kind(Frozen):
    first: int
    other: int = 2
    kept: ClassVar[int] = 3


class Both(Kind, Step):
    mapping: Mapping[str, int] = {}


def test_fields_come_from_every_base() -> None:
    one, another = Both(path="p", first=1), Both(path="p", first=1)
    assert vars(one) == {"path": "p", "names": (), "when": always, "first": 1, "other": 2, "mapping": {}}
    assert one.mapping is not another.mapping
    assert repr(one) == "Both(path='p', first=1)"


def test_a_value_that_a_row_does_not_compute_is_refused(tensors: dict[str, Array]) -> None:
    row = minibert.Family(model_type="mine", steps=(Tokens(path="tok"),), only={"hidden_size": 16})
    with pytest.raises(CheckpointError, match="'hidden_size' must be 16 for mine, found 8; that is another layer"):
        minibert.load("./mine", family=row)
