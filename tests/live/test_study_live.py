"""The study files' sentences about the reference are checked with it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.reference

PADDING = 0


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
