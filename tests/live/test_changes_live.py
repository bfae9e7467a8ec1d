"""Changed runs beside the reference: modules' outputs changed by hooks, held gradients, LoRA adapters of PEFT."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from encoder_files import off
from head_files import HEAD_CASE

import minibert
from minibert.equations.input_layer import Array
from minibert.show.prediction import logit_shares

pytestmark = pytest.mark.reference

ROWS = 1e-5  # relative to max(1, |reference|), last hidden states; measured 2.9e-6
MODELS = ("bert", "gpt2", "mpnet", "modernbert", "qwen3", "gemma3_text")
IDS = np.array([[5, 9, 3, 12, 7, 20, 4], [8, 4, 6, 11, 21, 3, 10]])


@pytest.mark.parametrize("name", MODELS)
def test_the_output_of_every_module(name: str, tmp_path: Path) -> None:
    """Each by itself; the same numbers are put in its place, here and by torch's hooks."""
    import torch
    import transformers

    folder = encoders.write(tmp_path / name, name)
    encoder = minibert.load_encoder(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    plain, paths = encoder.trace(IDS), dict(model.named_modules())
    keys, random = [key for key in plain if key in paths], np.random.default_rng(1)
    assert len(keys) >= 12
    for key in keys:
        values = (plain[key] + random.standard_normal(plain[key].shape)).astype(np.float32)
        given = values.swapaxes(1, 2) if key in encoder.stack.transposed_in_reference else values

        def put(_: Any, __: Any, found: Any, given: Array = given) -> Any:
            return torch.from_numpy(np.ascontiguousarray(given)).reshape(found.shape)

        hook = paths[key].register_forward_hook(put)
        with torch.no_grad():
            theirs = model(torch.from_numpy(IDS)).last_hidden_state.numpy()
        hook.remove()
        assert off(encoder(IDS, change={key: values}), theirs) <= ROWS, key


ONE = np.array([[5, 9, 7, 2, 11]])
CLOSE = 1e-5  # of the largest logit, both in float32: measured 1e-6


def hold(torch: Any, model: Any) -> None:
    """Keep the factors of norms and the activation after the embeddings constant: no gradient passes through them."""
    transform = model.cls.predictions.transform
    activate = transform.transform_act_fn.forward
    transform.transform_act_fn.forward = lambda x: x * (activate(x) / x).detach()
    outputs = [part.output for block in model.bert.encoder.layer for part in (block.attention, block)]
    for module in [transform, *outputs]:

        def norm(x: Any, own: Any = module.LayerNorm) -> Any:
            size = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + own.eps).detach()
            return (x - x.mean(-1, keepdim=True)) / size * own.weight + own.bias

        module.LayerNorm.forward = norm


def gradients(folder: Any, row: int, label: int) -> tuple[float, list[np.ndarray[Any, Any]]]:
    """A centred logit, and each block's context times its gradient (seq, dim), by the reference's own forward pass."""
    import torch
    import transformers

    model = transformers.BertForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    hold(torch, model)
    contexts: list[Any] = []

    def keep(_: Any, given: Any) -> Any:
        contexts.append(given[0].detach().requires_grad_())
        return (contexts[-1], *given[1:])

    for block in model.bert.encoder.layer:
        for module in (block.attention.self, block.intermediate):  # what enters them is no part of the direct way
            module.register_forward_pre_hook(lambda _, given: (given[0].detach(), *given[1:]))
        block.attention.output.dense.register_forward_pre_hook(keep)
    logits = model(torch.tensor(ONE)).logits[0, row]
    centred = logits[label] - logits.mean()
    centred.backward()
    return float(centred.detach()), [(x.grad[0] * x.detach()[0]).numpy() for x in contexts]


def test_what_heads_add_is_torch_s_gradient_times_their_values() -> None:
    """GPT-2's shares are computed by hand in tests/show/test_contributions.py."""
    found = HEAD_CASE["bert-masked_word"]
    with minibert.load_encoder(found.folder) as encoder:
        trace, bound = encoder.trace(ONE, head="masked_word"), encoder.head("masked_word")
        labels = np.tile(np.arange(bound.labels), (ONE.shape[1], 1))
        own = logit_shares(encoder, ONE, trace, bound, labels)
        heads = encoder.stack.heads
    scale = float(np.abs(own.total).max())
    for row, label in ((0, 3), (4, 7)):
        centred, products = gradients(found.folder, row, label)
        assert centred == pytest.approx(own.total[row, label], abs=CLOSE * scale)
        for block, x in enumerate(products):
            of_heads = x.astype(np.float64).reshape(len(x), heads, -1).sum(axis=-1)
            assert np.abs(np.delete(of_heads, row, axis=0)).max() == 0, "the direct way stays with its token"
            assert np.abs(of_heads[row] - own.heads[row, label, block]).max() < CLOSE * scale


# largest difference, as a share of the largest number: PEFT adds the product to a map's result; measured: 1.3e-6
EXACT = 1e-5
TWO = np.array([[5, 6, 7, 8, 9], [9, 3, 4, 10, 11]])
BARE, CLASSES = "AutoModel", "AutoModelForSequenceClassification"
SEQ_CLS = {"task_type": "SEQ_CLS"}
# the base has no head, and so two labels by default; the last one has its head, and changes it
ADAPTED: list[tuple[str, str, str | list[str], dict[str, Any]]] = [
    (BARE, "bert", ["query", "value", "intermediate.dense"], {}),
    (BARE, "gpt2", ["c_attn", "c_proj"], {"use_rslora": True}),  # whose weights are stored transposed
    (BARE, "modernbert", ["Wqkv", "Wo"], {}),
    (CLASSES, "bert", ["query", "pooler.dense"],
     {**SEQ_CLS, "layers_to_transform": [1], "exclude_modules": ["0.attention.self.query"]}),
    (CLASSES, "roberta", r".*\.1\..*(query|dense)", SEQ_CLS),
    (CLASSES, "gpt2", ["attn.c_proj", "mlp.c_proj"], {**SEQ_CLS, "layers_to_transform": 1, "layers_pattern": "h"}),
    (CLASSES, "gpt2", "all-linear", SEQ_CLS),
    (CLASSES, "distilbert", ["q_lin", "ffn.lin2"], SEQ_CLS),  # which saves pre_classifier too
    (CLASSES, "qwen3", ["q_proj", "k_proj", "layers.0.mlp.down_proj"], {**SEQ_CLS, "use_rslora": True}),
    (CLASSES, "gpt2", ["attn.c_proj", "score"], {}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # which PEFT corrects for each layer
@pytest.mark.parametrize(("auto", "name", "targets", "settings"), ADAPTED)
def test_an_adapted_model_opens_as_peft_opens_it(
    tmp_path: Path, auto: str, name: str, targets: str | list[str], settings: dict[str, Any]
) -> None:
    import torch
    import transformers
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(0)
    base, alone = encoders.write(tmp_path / "base", name, pad_token_id=0), tmp_path / "alone"
    load = partial(getattr(transformers, auto).from_pretrained, base, dtype=torch.float32)
    if auto == CLASSES:
        load = partial(load, num_labels=3)
    (load() if "score" in targets else transformers.AutoModel.from_pretrained(base)).float().save_pretrained(base)
    model = get_peft_model(load(), LoraConfig(r=3, lora_alpha=7, target_modules=targets, **settings))
    for key, parameter in model.named_parameters():
        if "lora_" in key or "modules_to_save" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(alone)
    with torch.no_grad():
        want = PeftModel.from_pretrained(load(), alone).eval()(torch.from_numpy(TWO))[0].numpy()
    both = [alone]
    if auto == BARE:
        both.append(Path(shutil.copytree(base, tmp_path / "both")))
        shutil.copytree(alone, both[-1], dirs_exist_ok=True)
    for folder in both:
        for low_memory in (False, True):
            with minibert.load_encoder(folder, low_memory=low_memory) as encoder:
                found = encoder.logits(TWO) if auto == CLASSES else encoder(TWO)
            assert np.abs(found - want).max() <= EXACT * np.abs(want).max(), (folder.name, low_memory)
