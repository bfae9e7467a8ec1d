"""A family of one's own, with steps and blocks of one's own, and what a wrong row is told."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from binders import Stored
from checkpoints import numbers, write
from encoder_files import off

import minibert
from minibert.equations import fast
from minibert.equations.activations import gelu
from minibert.equations.blocks import linear, softmax
from minibert.equations.input_layer import Array, layer_norm, lookup
from minibert.errors import CheckpointError
from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.steps import Binder, Inputs, Norm, Positions, Project, Record, Step, Tokens
from minibert.models.run import packing

SIZES = {"vocab_size": 11, "hidden_size": 8, "max_position_embeddings": 6}
CONFIG = {"model_type": "mine", "layer_norm_eps": 1e-5, **SIZES}
ROWS = (Tokens(path="tok"), Positions(path="pos"))
IDS = np.array([[1, 2, 10, 0], [5, 5, 5, 5]])


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
    want = fast.layer_norm(total, tensors["ln.weight"], tensors["ln.bias"], 1e-5)
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
        apart = {"float64": x.astype(np.float64), "apart": np.repeat(x, 2, axis=-1)[..., ::2]}
        return apart.get(self.layout, np.asfortranarray(x))


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
    for steps, checked, says in (
        ((Tokens(path="token"), Positions(path="pos")), None, "no tensor for 'token.weight'; .* is 'tok.weight'"),
        ((Tokens(path="tok"),), ("pos.", "ln."), r"ln.bias, ln.weight, pos.weight"),
        ((Tokens(path="tok", width="width"),), None, r"^\./mine: config.json: 'width'"),
    ):
        more = {} if checked is None else {"checked_prefixes": checked}
        with pytest.raises(CheckpointError, match=says):
            minibert.load("./mine", family=minibert.Family(model_type="mine", steps=steps, **more))


def test_a_step_with_a_field_too_many_or_too_few_is_refused() -> None:
    with pytest.raises(TypeError, match="ruel"):
        Positions(path="pos", ruel="mask")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Tokens()  # type: ignore[call-arg]


# -- blocks of one's own ----------------------------------------------------------------------------------------------

# Of parts that no row has together, against the textbook's formulas, a text and a head at a time: one map for queries,
# keys and values, its bias alone; shared key heads; a window that looks both ways; LayerNorm without a bias after each
# sum, with an eps of its own.
SAME = 1e-10  # both in float64, numbers up to 30; measured 4e-14
FLOAT32 = 2e-5  # measured 2.1e-6
LENGTHS = (9, 3, 9, 1, 6)
HEADS, SHARE = 4, 2  # query heads, and how many of them share a key head
MINE = Blocks(
    parts=(
        Residual(
            work=Attention(
                maps=("attention.self.qkv",), key_heads="num_key_value_heads", output="attention.output.dense",
                output_biased=False, window=lambda config, i: 2,
            ),
            post_norm=Norm(path="attention.output.LayerNorm", biased=False),
        ),
        Residual(
            work=FeedForward(up="intermediate.dense", down="output.dense", activation="intermediate.act", biased=False),
            post_norm=Norm(path="output.LayerNorm", biased=False, eps=0.5),
        ),
    ),
)  # fmt: skip
BLOCKS_CONFIG = {
    "model_type": "bert", "vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 20, "max_position_embeddings": 24, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
    "num_key_value_heads": HEADS // SHARE,
}  # fmt: skip


def tensors_of_blocks() -> dict[str, Array]:
    """A checkpoint's numbers: of each shape that the row asks for."""
    binder = Stored(config=MINE.configure(minibert.FAMILIES["bert"], BLOCKS_CONFIG, "config.json"))
    for i in range(2):
        MINE.bind(binder.config, binder, i)
    rows = {"word_embeddings": 29, "position_embeddings": 24, "token_type_embeddings": 2}
    binder.asked |= {f"embeddings.{name}.weight": (count, 12) for name, count in rows.items()}
    binder.asked |= {f"embeddings.LayerNorm.{part}": (12,) for part in ("weight", "bias")}
    made = {}
    for number, (name, shape) in enumerate(sorted(binder.asked.items())):
        spread = np.random.default_rng(number).standard_normal(shape) / (3 if len(shape) == 1 else 2)
        made[name] = (spread + ("norm" in name.lower() and name.endswith("weight"))).astype(np.float32)
    return made


def by_hand(ids: list[int], t: dict[str, Array]) -> Array:
    x = t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0]
    x = x + t["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(x, t["embeddings.LayerNorm.weight"], t["embeddings.LayerNorm.bias"], 1e-5)
    for at in ("encoder.layer.0", "encoder.layer.1"):
        side_by_side = linear(x, *(t[f"{at}.attention.self.qkv.{part}"] for part in ("weight", "bias")))
        q, k, v = side_by_side[:, :12], side_by_side[:, 12:18], side_by_side[:, 18:]
        context = np.zeros_like(q)
        for head in range(HEADS):
            own, shared = (slice(h * 3, h * 3 + 3) for h in (head, head // SHARE))
            for i in range(len(ids)):
                near = slice(max(0, i - 2), i + 3)
                context[i, own] = softmax(q[i, own] @ k[near, shared].T / math.sqrt(3)) @ v[near, shared]
        y = linear(context, t[f"{at}.attention.output.dense.weight"])
        x = layer_norm(x + y, t[f"{at}.attention.output.LayerNorm.weight"], None, 1e-5)
        y = linear(gelu(linear(x, t[f"{at}.intermediate.dense.weight"])), t[f"{at}.output.dense.weight"])
        x = layer_norm(x + y, t[f"{at}.output.LayerNorm.weight"], None, 0.5)
    return x


@pytest.mark.parametrize("scores", [1, 1 << 17])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", SAME), ("float32", FLOAT32)])
def test_a_row_of_one_s_own(
    scores: int, dtype: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.models.open.load_encoder.BLOCKS", {"bert": MINE})
    monkeypatch.setattr(packing, "SCORES", scores)  # 1: one head at a time
    folder = write(tmp_path, BLOCKS_CONFIG, stored := tensors_of_blocks())
    ids = np.arange(45).reshape(5, 9) * 7 % 28 + 1
    mask = (np.arange(9) < np.array(LENGTHS)[:, None]).astype(int)
    with minibert.load_encoder(folder, dtype=dtype) as encoder:
        found, trace = encoder(ids, attention_mask=mask), encoder.trace(ids, attention_mask=mask)
        assert off(trace["hidden_states.2"], found) <= tolerance
        keys = [key for i, block in enumerate(encoder.stack.blocks) for key in block.keys(i, encoder.stack)]
        assert [key for key in trace if key in keys] == keys
    exact = {name: array.astype(np.float64) for name, array in stored.items()}
    for row, length in enumerate(LENGTHS):
        assert off(found[row, :length], by_hand(ids[row, :length].tolist(), exact)) <= tolerance
