"""Changed runs beside the reference: modules' outputs changed by hooks, LoRA adapters of PEFT."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from encoder_files import off

import minibert
from minibert.equations.input_layer import Array

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
