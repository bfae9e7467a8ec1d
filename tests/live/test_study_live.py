"""What the study files say of the reference, and the probes' regressions against scikit-learn on the same folds."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import probes
import pytest
from needed import missing

from minibert.equations import similarity
from minibert.equations.input_layer import Array, sinusoidal_positions

pytestmark = pytest.mark.reference

COSINE_TOLERANCE = 1e-14  # float64 on both sides: measured 9e-16
# log odds of the tested pairs, sizes up to 30, from two ways to the same minimum: measured at most 1.6e-7
LOG_ODDS_TOLERANCE = 2e-6
# positions that the two linear regressions predict for BERT's table: measured 1.1e-13, with a penalty 1.7e-11
POSITION_TOLERANCE = 2e-10
# and for sinusoids, whose columns repeat each other so nearly that rounding decides the last digits: measured 4.9e-4
SINUSOID_POSITION_TOLERANCE = 1e-2
PADDING = 0

# the probes against scikit-learn


@pytest.fixture(params=["sinusoids", "bert"])
def table(request: pytest.FixtureRequest) -> tuple[str, Array]:
    if importlib.util.find_spec("sklearn") is None:
        missing("scikit-learn not installed; it is in the extra `reference`")
    if request.param == "sinusoids":
        return "sinusoids", sinusoidal_positions(512, 768)
    return "bert", request.getfixturevalue("bert_positions")


def test_cosine_similarity_is_scikit_learns(table: tuple[str, Array]) -> None:
    from sklearn.metrics.pairwise import cosine_similarity

    rows = table[1].astype(np.float64)
    assert np.abs(similarity.cosine_similarity(rows) - cosine_similarity(rows)).max() <= COSINE_TOLERANCE


def test_principal_components_are_scikit_learns(table: tuple[str, Array]) -> None:
    from sklearn.decomposition import PCA

    rows = table[1].astype(np.float64)
    theirs = PCA(2, svd_solver="full").fit(rows)
    ours = similarity.principal_components(rows)
    signs = np.sign(np.sum(ours.directions * theirs.components_, axis=1))  # both choose a sign by a rule of their own
    assert np.abs(ours.shares - theirs.explained_variance_ratio_).max() <= 1e-12
    assert np.abs(ours.coordinates * signs - theirs.transform(rows)).max() <= 1e-11


@pytest.mark.parametrize("seed", [0, 1])
def test_absolute_probe_is_scikit_learns_on_the_same_folds(table: tuple[str, Array], seed: int) -> None:
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.model_selection import KFold

    name, rows = table
    x, y = probes.absolute_position_data(rows, seed)
    tolerance = SINUSOID_POSITION_TOLERANCE if name == "sinusoids" else POSITION_TOLERANCE
    for penalty, theirs in ((0.0, LinearRegression()), (0.01, Ridge(0.01, solver="svd"))):
        errors = []
        for train, test in KFold(5).split(x):
            predicted = theirs.fit(x[train], y[train]).predict(x[test])
            w, b = probes.linear_regression(x[train], y[train], penalty)
            assert np.abs(x[test] @ w + b - predicted).max() <= tolerance
            errors.append(np.mean(np.abs(np.round(predicted) - y[test])))
        assert probes.absolute_position_error(rows, seed, penalty=penalty) == np.mean(errors)


def test_the_linear_penalty_is_the_one_that_scikit_learn_would_choose(table: tuple[str, Array]) -> None:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, PredefinedSplit

    x, y = probes.absolute_position_data(table[1])
    train, _ = next(probes.k_folds(512))
    x, y = x[train], y[train]
    _, held_out = next(probes.k_folds(len(x)))
    split = PredefinedSplit(np.where(np.isin(np.arange(len(x)), held_out), 0, -1))
    grid = {"alpha": list(probes.LINEAR)}
    search = GridSearchCV(Ridge(solver="svd"), grid, cv=split, scoring="neg_mean_squared_error").fit(x, y)
    ours = probes.chosen_penalty(probes.linear_regression, probes.squared_error, x, y, probes.LINEAR)
    assert search.best_params_ == {"alpha": ours}


@pytest.mark.parametrize("seed", [0, 1])
def test_relative_probe_is_scikit_learns_on_the_same_folds(table: tuple[str, Array], seed: int) -> None:
    from sklearn.linear_model import LogisticRegression

    _, rows = table
    x, y = probes.relative_position_data(rows, seed)
    errors = []
    for train, test in probes.k_folds(512):
        # its default, L-BFGS to 1e-4, stops while some log odds are still 0.6 off and 2 pairs of 1024 fall otherwise
        theirs = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-10).fit(x[train], y[train])
        w, b = probes.logistic_regression(x[train], y[train], penalty=1.0)
        assert np.abs(x[test] @ w + b - theirs.decision_function(x[test])).max() <= LOG_ODDS_TOLERANCE
        errors.append(np.mean(theirs.predict(x[test]) != y[test]))
    assert probes.relative_position_error(rows, seed, penalty=1.0) == np.mean(errors)


# what the study files say of the reference


def test_berts_three_tables_are_parameters_and_its_position_ids_a_buffer() -> None:
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1)).embeddings
    tables = [f"{name}_embeddings.weight" for name in ("word", "position", "token_type")]
    parameters = dict(module.named_parameters())
    assert list(parameters) == [*tables, "LayerNorm.weight", "LayerNorm.bias"]
    assert all(parameter.requires_grad for parameter in parameters.values())
    assert "position_ids" in dict(module.named_buffers())
    assert type(module.LayerNorm)(4).eps == 1e-5, "torch's own default"


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_rows_of_words_that_never_occur_get_a_gradient_from_the_output(name: str) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "BertForMaskedLM":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=60, **sizes))
        inner, table = model.bert, model.bert.embeddings.word_embeddings
        assert table.padding_idx == PADDING and not torch.any(table.weight[PADDING])
    else:
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=60, **sizes))
        inner, table = model.transformer, model.transformer.wte
    assert model.get_output_embeddings().weight is table.weight
    ids = torch.randint(1, 20, (3, 8))
    ids[0, -2:] = PADDING
    mask = (ids != PADDING).long()

    def moved() -> list[bool]:
        rows: list[bool] = torch.any(table.weight.grad != 0, dim=1).tolist()
        table.weight.grad = None
        return rows

    inner(input_ids=ids, attention_mask=mask).last_hidden_state.square().sum().backward()
    alone = moved()
    assert not any(alone[20:]) and alone[PADDING] == (name == "GPT2LMHeadModel")
    model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    assert all(moved())


def test_gpt2_drops_out_after_the_sum_and_adds_a_word_row_for_types() -> None:
    import torch
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_positions=4, n_layer=1, n_head=2)).eval()
    assert [name for name, _ in model.named_children()][:3] == ["wte", "wpe", "drop"]
    dropped: list[Any] = []
    model.drop.register_forward_hook(lambda module, given, result: dropped.append(given[0]))
    ids = torch.tensor([[3, 5, 7]])
    with torch.no_grad():
        model(ids)
        model(ids, token_type_ids=torch.zeros_like(ids))
    word, position = model.wte.weight.detach(), model.wpe.weight.detach()
    assert torch.equal(dropped[0], word[ids] + position[None, :3])
    assert torch.equal(dropped[1], (word[ids] + position[None, :3]) + word[torch.zeros_like(ids)])


def test_t5s_bias_lies_in_block_0_and_its_buckets_are_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import T5Config, T5Model

    monkeypatch.setattr(sys, "argv", ["study"])  # it reads a command line when it is imported
    import study

    model = T5Model(T5Config(vocab_size=32128, d_model=512, num_layers=2, num_heads=8, d_ff=8))
    ends = [f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for side in ("encoder", "decoder")]
    assert [name for name, _ in model.named_parameters() if "relative" in name] == ends
    lines = iter(str(model.encoder).splitlines())
    assert all(line in lines for line in study.with_relative_bias(study.untrained_t5()).splitlines())

    distances = torch.arange(-400, 401)  # key - query
    bucket = model.encoder.block[0].layer[0].SelfAttention._relative_position_bucket
    encoder, decoder = (
        bucket(distances, bidirectional=both, num_buckets=32, max_distance=128) for both in (True, False)
    )
    assert set(range(32)) - set(encoder.tolist()) == {16} and set(decoder.tolist()) == set(range(32))
    assert distances[encoder == 31].min() == 91 and distances[encoder == 15].max() == -91
    assert distances[decoder == 31].max() == -113

    near = torch.arange(-127, 128)

    def numbers(buckets: int) -> int:
        return len(set(bucket(near, bidirectional=True, num_buckets=buckets, max_distance=128).tolist()))

    assert numbers(278) == 255 and max(map(numbers, range(4, 278))) < 255


def test_opt_looks_up_row_1_for_a_masked_token_and_bart_neither_of_its_first_two() -> None:
    import torch
    from transformers import BartConfig, BartModel, OPTConfig, OPTModel

    sizes = {"vocab_size": 20, "max_position_embeddings": 16, "d_model": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    bart = BartModel(BartConfig(**sizes, **heads)).encoder
    opt = OPTModel(OPTConfig(**{k: v for k, v in sizes.items() if k != "d_model"}, hidden_size=8, ffn_dim=8,
                             word_embed_proj_dim=8, num_hidden_layers=1, num_attention_heads=2)).decoder  # fmt: skip
    ids, mask = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1, 1]])
    for table, rows in ((opt.embed_positions, [1, 2, 3]), (bart.embed_positions, [2, 3, 4])):
        found: list[Any] = []
        table.register_forward_hook(lambda module, given, result, found=found: found.append(result))
        with torch.no_grad():
            (opt if table is opt.embed_positions else bart)(ids, attention_mask=mask)
        assert torch.equal(found[0].reshape(3, -1), table.weight[rows])
