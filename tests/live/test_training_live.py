"""The backward formulas, the steps of Adam and the trained GPT-2 of the study files, against torch and transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import training as study_training
from drawn import normal
from textbook import gpt2_weights

import minibert
from minibert.cli import main
from minibert.equations import gradients, training
from minibert.equations.blocks import additive_mask
from minibert.equations.heads import cross_entropy
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import Gpt2Weights, gpt2_model

pytestmark = pytest.mark.reference

# relative to the largest entry of each gradient, float64 on both sides: measured at most 1.7e-15
FLOAT64_TOLERANCE = 2e-14
# float32 on both sides: measured at most 1.0e-6
FLOAT32_TOLERANCE = 1e-5
# logits of the trained model, in float32, relative to the largest: measured at most 6e-7
LOGITS_TOLERANCE = 1e-5

BATCH, SEQ, DIM, WIDTH, HEADS, VOCAB, POSITIONS = 3, 7, 16, 12, 4, 11, 9


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def near(found: Array, expected: Array, dtype: str) -> None:
    assert found.dtype == expected.dtype == np.dtype(dtype) and found.shape == expected.shape
    assert np.any(expected), "a gradient of zeros proves nothing"
    tolerance = FLOAT64_TOLERANCE if dtype == "float64" else FLOAT32_TOLERANCE
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def leaf(array: Array) -> Any:
    import torch

    return torch.from_numpy(array.copy()).requires_grad_()


def test_linear(dtype: str) -> None:
    import torch

    arrays = [normal(*shape).astype(dtype) for shape in ((BATCH, SEQ, WIDTH), (DIM, WIDTH), (DIM,))]
    grad, leaves = normal(BATCH, SEQ, DIM, seed=4).astype(dtype), [leaf(array) for array in arrays]
    torch.nn.functional.linear(*leaves).backward(torch.from_numpy(grad))
    for found, tensor in zip(gradients.linear_gradient(grad, *arrays[:2]), leaves, strict=True):
        near(found, tensor.grad.numpy(), dtype)


@pytest.mark.parametrize("name", ["softmax", "gelu", "gelu_tanh"])
def test_formulas_of_one_array(name: str, dtype: str) -> None:
    import torch

    functional = torch.nn.functional
    theirs = {
        "softmax": lambda x: functional.softmax(x, -1),
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    x, grad = (3 * normal(SEQ, DIM)).astype(dtype), normal(SEQ, DIM, seed=4).astype(dtype)
    tensor = leaf(x)
    theirs[name](tensor).backward(torch.from_numpy(grad))
    near(getattr(gradients, f"{name}_gradient")(grad, x), tensor.grad.numpy(), dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, dtype: str) -> None:
    import torch

    arrays = [normal(BATCH, HEADS, SEQ, DIM, seed=seed).astype(dtype) for seed in (5, 6, 7)]
    grad, leaves = normal(BATCH, HEADS, SEQ, DIM, seed=4).astype(dtype), [leaf(array) for array in arrays]
    attend = torch.nn.functional.scaled_dot_product_attention
    attend(*leaves, is_causal=causal).backward(torch.from_numpy(grad))
    mask = additive_mask(np.tri(SEQ, dtype=bool), dtype) if causal else None
    for found, tensor in zip(gradients.attention_gradient(grad, *arrays, mask=mask), leaves, strict=True):
        near(found, tensor.grad.numpy(), dtype)


def test_cross_entropy(dtype: str) -> None:
    import torch

    logits, grad = normal(SEQ, VOCAB).astype(dtype), normal(SEQ, seed=4).astype(dtype)
    targets, tensor = np.arange(SEQ) % VOCAB, leaf(logits)
    torch.nn.functional.cross_entropy(tensor, torch.from_numpy(targets), reduction="none").backward(
        torch.from_numpy(grad)
    )
    near(gradients.cross_entropy_gradient(grad, logits, targets), tensor.grad.numpy(), dtype)


def gpt2(dtype: str) -> Any:
    """The reference's own model, seeded, with biases and norms that are not 0 and 1."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "n_embd": DIM, "n_positions": POSITIONS, "n_layer": 2, "n_head": HEADS}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).to(getattr(torch, dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def arrays(model: Gpt2Weights) -> list[Array]:
    affines = [affine for block in model.blocks for affine in block] + [model.last_norm]
    return [model.wte, model.wpe, *(array for affine in affines for array in affine)]


def loss_and_gradient(ours: Gpt2Weights, ids: Array) -> tuple[float, Gpt2Weights]:
    logits = gpt2_model(ids, np.ones_like(ids), ours, HEADS)
    # the row of a token predicts the next one; what the last row predicts is not known
    targets, share = np.roll(ids, -1, axis=1), np.full(ids.shape, 1 / ids[:, 1:].size, logits.dtype)
    share[:, -1] = 0
    loss = float((cross_entropy(logits, targets) * share).sum())
    grad = gradients.cross_entropy_gradient(share, logits, targets)
    return loss, training.gpt2_model_gradient(grad, ids, ours, HEADS)


def test_a_whole_gpt2_with_its_tied_table(dtype: str) -> None:
    import torch

    model = gpt2(dtype)
    named = dict(model.transformer.named_parameters())
    assert model.lm_head.weight is model.transformer.wte.weight, "one table at both ends"
    ids = np.random.default_rng(5).integers(0, VOCAB, (BATCH, SEQ))
    tensor = torch.from_numpy(ids)
    logits = model(input_ids=tensor).logits[:, :-1]
    # `labels=` would give the same loss, in float32 whatever the model's dtype
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tensor[:, 1:].reshape(-1))
    expected.backward()
    ours = gpt2_weights({name: x.detach().numpy() for name, x in named.items()})
    loss, found = loss_and_gradient(ours, ids)
    assert abs(loss - expected.item()) <= 1e-5
    theirs = gpt2_weights({name: x.grad.numpy() for name, x in named.items()})
    for mine, other in zip(arrays(found), arrays(theirs), strict=True):
        # a key's bias moves all scores of a query alike, so its gradient is 0 but for rounding, on both sides
        if np.abs(other).max() > 1e-6:
            near(mine, other, dtype)
        else:
            assert np.abs(mine).max() < 1e-6
    assert sum(np.abs(other).max() <= 1e-6 for other in arrays(theirs)) == len(ours.blocks), "the keys' biases alone"


def test_steps_of_adam(dtype: str) -> None:
    import torch

    start = normal(DIM, WIDTH).astype(dtype)
    tensor = leaf(start)
    optimizer = torch.optim.Adam([tensor], lr=0.01)
    weight, mean, square = start, np.zeros_like(start), np.zeros_like(start)
    for step in range(1, 21):
        grad = normal(DIM, WIDTH, seed=step).astype(dtype)
        tensor.grad = torch.from_numpy(grad)
        optimizer.step()
        weight, mean, square = training.adam(weight, grad, mean, square, step, rate=0.01)
    near(weight - start, tensor.detach().numpy() - start, dtype)


# the small GPT-2 beside the study files


def test_the_trained_model_is_read_by_transformers_with_the_same_logits_and_ids() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs, info = AutoModelForCausalLM.from_pretrained(study_training.SHIPPED, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and theirs.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(study_training.SHIPPED)
    with minibert.load_encoder(study_training.SHIPPED) as encoder:
        for text in ("", "q", "station", "The cat 9", "unbelievably"):
            batch = encoder.tokenize(text)
            ids = tokenizer(text, return_tensors="pt").input_ids
            assert np.array_equal(batch["input_ids"], ids)
            with torch.no_grad():
                expected = theirs.eval()(input_ids=ids).logits.numpy()
            found = encoder.logits(**batch)
            assert np.abs(found - expected).max() <= LOGITS_TOLERANCE * np.abs(expected).max()
            drawn = theirs.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
            written = encoder.complete(text, tokens=4, temperature=0.0)
            assert text + tokenizer.decode(drawn, skip_special_tokens=True) == written


def test_verify_finds_the_trained_model_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--encoder", str(study_training.SHIPPED)]) == 0
    assert capsys.readouterr().out.endswith("no difference beyond what rounding allows\n")
