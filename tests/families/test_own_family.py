"""A family of one's own, with steps of one's own, and what a wrong row is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import write

import minibert
from minibert.equations.fast import layer_norm
from minibert.equations.input_layer import Array, lookup
from minibert.errors import CheckpointError
from minibert.families.parts.steps import Binder, Inputs, Norm, Positions, Project, Record, Step, Tokens

SIZES = {"vocab_size": 11, "hidden_size": 8, "max_position_embeddings": 6}
CONFIG = {"model_type": "mine", "layer_norm_eps": 1e-5, **SIZES}
ROWS = (Tokens(path="tok"), Positions(path="pos"))
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


def test_a_row_of_three_steps(tensors: dict[str, Array]) -> None:
    layer = minibert.load("./mine", family=minibert.Family(model_type="mine", steps=(*ROWS, Norm(path="ln"))))
    total = lookup(tensors["tok.weight"], IDS) + tensors["pos.weight"][:4]
    want = layer_norm(total, tensors["ln.weight"], tensors["ln.bias"], 1e-5)
    assert layer(IDS).tobytes() == want.tobytes()
    assert list(layer.trace(IDS)) == ["position_ids", "tok", "pos", "sum", "ln"]
    assert repr(layer) == "tok  Embedding(11, 8)\npos  Embedding(6, 8)\nln   LayerNorm((8,), eps=1e-05)"
    assert layer.max_length == 6 and layer.config.hidden_size == 8
    assert "mine" not in minibert.FAMILIES


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
    made = {"tok.weight": numbers(11, 96), "pos.weight": numbers(50, 96), "up.weight": numbers(96, 96)}
    made |= {"ln.weight": numbers(96), "ln.bias": numbers(96)}
    write(tmp_path, {**CONFIG, "hidden_size": 96, "embedding_size": 96, "max_position_embeddings": 50}, made)
    ends: tuple[tuple[Step, ...], ...] = ((Norm(path="ln"),), (Project(path="up", biased=False), Norm(path="ln")))
    for end in ends:
        ids = np.random.default_rng(0).integers(0, 11, (7, 50))  # more than a small tile
        turned, plain = (
            minibert.load(tmp_path, family=minibert.Family(model_type="mine", steps=steps, checked_prefixes=()))
            for steps in ((*ROWS, Turned(path="turned", layout=layout), *end), (*ROWS, *end))
        )
        assert turned(ids).tobytes() == plain(ids).tobytes()
        assert turned(ids[:1, :3]).tobytes() == plain(ids[:1, :3]).tobytes()
        assert turned.trace(ids)["ln"].tobytes() == plain(ids).tobytes()


def test_a_row_that_does_not_fit_is_told_what_is_missing(tensors: dict[str, Array]) -> None:
    row = minibert.Family(model_type="mine", steps=(Tokens(path="token"), Positions(path="pos")))
    nearest = r"no tensor for 'token.weight'; .*the nearest name there is 'tok.weight'"
    with pytest.raises(CheckpointError, match=nearest):
        minibert.load("./mine", family=row)
    row = minibert.Family(model_type="mine", steps=(Tokens(path="tok"),), checked_prefixes=("pos.", "ln."))
    with pytest.raises(CheckpointError, match=r"ln.bias, ln.weight, pos.weight"):
        minibert.load("./mine", family=row)
    row = minibert.Family(model_type="mine", steps=(Tokens(path="tok", width="width"),))
    with pytest.raises(CheckpointError, match=r"^\./mine: config.json: 'width'"):
        minibert.load("./mine", family=row)


def test_a_step_with_a_field_too_many_or_too_few_is_refused() -> None:
    with pytest.raises(TypeError, match="ruel"):
        Positions(path="pos", ruel="mask")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Tokens()  # type: ignore[call-arg]
