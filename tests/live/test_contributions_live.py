"""What each head adds, beside torch: gradients of a logit where norms, activations and later blocks are held fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from head_files import HEAD_CASE

import minibert
from minibert.show.text.contributions import shares

pytestmark = pytest.mark.reference

IDS = np.array([[5, 9, 7, 2, 11]])
CLOSE = 1e-5  # of the largest logit, both in float32: measured 1e-6


def hold(torch: Any, module: Any, kind: str) -> None:
    """Keep the factor of a norm or an activation as it is: no gradient passes through it."""
    inner = module.forward

    def norm(x: Any) -> Any:
        size = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + module.eps).detach()
        return (x - x.mean(-1, keepdim=True)) / size * module.weight + module.bias

    def activation(x: Any) -> Any:
        return x * (inner(x) / x).detach()

    module.forward = norm if kind == "norm" else activation


def gradients(folder: Any, name: str, row: int, label: int) -> tuple[float, list[np.ndarray[Any, Any]]]:
    """A centred logit, and each block's context times its gradient (seq, dim), by the reference's own forward pass."""
    import torch
    import transformers

    if name == "bert":
        model = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        transform = model.cls.predictions.transform
        norms = [transform.LayerNorm]
        blocks = model.bert.encoder.layer
        held = [module for block in blocks for module in (block.attention.self, block.intermediate)]
        outputs = [block.attention.output.dense for block in blocks]
        norms += [norm for block in blocks for norm in (block.attention.output.LayerNorm, block.output.LayerNorm)]
        hold(torch, transform.transform_act_fn, "activation")
    else:
        model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
        blocks, norms = model.transformer.h, [model.transformer.ln_f]
        held = [module for block in blocks for module in (block.ln_1, block.ln_2)]
        outputs = [block.attn.c_proj for block in blocks]
    for norm in norms:
        hold(torch, norm, "norm")
    for module in held:  # what enters attention and feed-forward is no part of the direct way
        module.register_forward_pre_hook(lambda _, given: (given[0].detach(), *given[1:]))
    contexts: list[Any] = []

    def keep(_: Any, given: Any) -> Any:
        contexts.append(given[0].detach().requires_grad_())
        return (contexts[-1], *given[1:])

    for output in outputs:
        output.register_forward_pre_hook(keep)
    logits = model(torch.tensor(IDS)).logits[0, row]
    centred = logits[label] - logits.mean()
    centred.backward()
    return float(centred.detach()), [(x.grad[0] * x.detach()[0]).numpy() for x in contexts]


@pytest.mark.parametrize(("case", "head"), [("bert-masked_word", "masked_word"), ("gpt2-next_word", "next_word")])
def test_what_heads_add_is_torch_s_gradient_times_their_values(case: str, head: str) -> None:
    found = HEAD_CASE[case]
    with minibert.load_encoder(found.folder) as encoder:
        trace, bound = encoder.trace(IDS, head=head), encoder.head(head)
        labels = np.tile(np.arange(bound.labels), (IDS.shape[1], 1))
        own = shares(encoder, IDS, trace, bound, labels)
        heads = encoder.stack.heads
    scale = float(np.abs(own.total).max())
    for row, label in ((0, 3), (4, 7)):
        centred, products = gradients(found.folder, case.partition("-")[0], row, label)
        assert centred == pytest.approx(own.total[row, label], abs=CLOSE * scale)
        for block, x in enumerate(products):
            of_heads = x.astype(np.float64).reshape(len(x), heads, -1).sum(axis=-1)
            assert np.abs(np.delete(of_heads, row, axis=0)).max() == 0, "the direct way stays with its token"
            assert np.abs(of_heads[row] - own.heads[row, label, block]).max() < CLOSE * scale
