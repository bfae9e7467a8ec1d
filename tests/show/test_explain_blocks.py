"""The page of `minibert explain TEXT --block N`: one block's steps, their formulas and functions, one head's table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import encoders
import numpy as np
import pytest
from command_line import Printed

from minibert.cli import main
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.show.explain import block_steps, explain_block, pair_table
from minibert.show.text import beginning, torch_text

TEXT = "we lived above the clouds"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(encoders.write(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(encoders.write_gpt2(tmp_path_factory.mktemp("gpt2")))


def test_the_last_step_is_named_with_what_it_gives(bert: Encoder, gpt2: Encoder) -> None:
    """Names and order of all steps: see test_every_family."""
    for encoder, block, last in (
        (bert, 1, "output.LayerNorm = hidden_states.2"), (gpt2, 0, "mlp.sum = hidden_states.1"),
        (gpt2, 1, "ln_f = hidden_states.2"),
    ):  # fmt: skip
        lines = list(explain_block(encoder, TEXT, block))
        after = [line.partition("  (")[0] for before, line in pairwise(lines) if before == ""]
        assert after[0] == f"hidden_states.{block}" and after[-1] == last


def test_formulas_name_what_they_take(bert: Encoder, gpt2: Encoder) -> None:
    def told(encoder: Encoder) -> dict[str, str]:
        trace = encoder.trace([[5, 6, 7]])
        return {name.partition(" = ")[0]: step.formula for name, _, step in block_steps(encoder, trace, 1, head=2)}

    of = told(bert)
    assert of["hidden_states.1"] == "what enters: the output of block 0"
    assert of["attention.self.key"].endswith("hidden_states.1 @ weight^T + bias")
    assert of["attention.self.scores"].startswith("0.5 * query @ key^T, 1 / sqrt(4) = 0.5; columns 8 to 11 of each are")
    assert of["intermediate.intermediate_act_fn"].startswith(
        "y = x * (1 + erf(x / sqrt(2))) / 2, x = intermediate.dense"
    )
    assert of["output.sum"] == "attention.output.LayerNorm + output.dense"
    of = told(gpt2)
    assert of["attn.c_attn"].endswith("ln_1 @ weight + bias") and "x = hidden_states.1" in of["ln_1"]
    assert "side by side" in of["attn.scores"] and "x = mlp.sum" in of["ln_f"]
    assert "later tokens masked" in of["probabilities, attentions.1"] and "tanh" in of["mlp.act"]


def test_probabilities_stand_beside_their_tokens(bert: Encoder) -> None:
    head = 2
    lines = list(explain_block(bert, TEXT, 1, head))
    weights = bert.trace(**bert.tokenize(TEXT))["attentions.1"][0, head]
    tokens = bert.tokens(bert.tokenize(TEXT)["input_ids"])[0]
    assert tokens == ["[CLS]", "we", "lived", "above", "the", "clouds", "[SEP]"]
    start = next(i for i, line in enumerate(lines) if line.split() == tokens)
    for token, row, line in zip(tokens, weights, lines[start + 1 :], strict=False):
        found, *numbers = line.split()
        assert found == token and numbers == [f"{number:.4f}" for number in row]
    assert lines[1] == f"  head {head} of 4 in scores and weights, 4 numbers wide"
    row = torch_text(bert.trace(**bert.tokenize(TEXT))["encoder.layer.1.attention.self.scores"][0, head, 1, :6], 2)
    assert f"  we  {row[:-1]}, ...]" in lines


def test_the_numbers_are_those_of_the_text_s_first_token(bert: Encoder) -> None:
    trace = bert.trace(**bert.tokenize(TEXT))
    lines = list(explain_block(bert, TEXT, 1, 2))
    for key in ("hidden_states.1", "attention.self.query", "attention.self.scores", "output.sum"):
        x = trace[key if key.startswith("hidden") else f"encoder.layer.1.{key}"]
        assert f"  we  {beginning(x[0, 2, 1] if key.endswith('scores') else x[0, 1])}" in lines, key


def test_a_wide_table_shows_the_largest_weights_and_the_rest_of_their_sum() -> None:
    tokens = [f"token{i:02}" for i in range(12)]
    weights = np.full((12, 12), 0.01)
    weights[0, [7, 2, 11]] = 0.5, 0.3, 0.11
    lines = list(pair_table(tokens, weights, lambda line: line))
    assert lines[0].strip() == "the 3 largest weights, and the sum of the other 9"
    assert " ".join(lines[1].split()) == "token00 0.5000 token07 7 0.3000 token02 2 0.1100 token11 11 0.0900"
    assert len(lines) == 13 and max(map(len, lines)) <= 80


def test_the_command_prints_a_block(tmp_path: Path, capsys: Printed) -> None:
    folder = encoders.write(tmp_path / "tiny", "bert")
    assert main(["explain", TEXT, "--pair", "the dog", "--model", str(folder), "--block", "1", "--head", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("block 1 of 2 of bert -> (1, 12, 16)\n  head 2 of 4")
