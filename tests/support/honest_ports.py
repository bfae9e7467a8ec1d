"""Ports without a mistake, each with the format in which it computes: transformers' modules with other kernels, other
orders and narrower numbers. `WRONG` has the same formats with one module wrong.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import planted_ports
from planted_ports import Change, Planted, around, mask_as, put, several, torch, weight

from minibert.verify import reference
from minibert.verify.traces import Traces

FORMATS = ("float32", "float16", "bfloat16")  # each rounds more than the one before


class Honest(NamedTuple):
    port: Planted
    format: str = "float32"


def write(port: Planted, folder: Path) -> tuple[Path, Traces, Traces]:
    """The model's folder, and the port's inputs and numbers. NumPy has no bfloat16: it is written as float32."""
    where, right = planted_ports.written(folder, port), reference._array
    reference._array = lambda x: right(x.float() if str(x.dtype) == "torch.bfloat16" else x)
    try:
        return where, *planted_ports.ported(where, port)
    finally:
        reference._array = right


# -- other programs of a product -----------------------------------------------------------------------------------


def loaded_as(dtype: str) -> Change:
    """Round parameters as `from_pretrained(dtype=...)` does; `model.bfloat16()` rounds rotary frequencies too."""

    def change(model: Any) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))

    return change


def half_as_transformers(model: Any) -> None:
    """T5's `_keep_in_fp32_modules`."""
    model.half()
    for path, own in model.named_modules():
        if path.endswith(".wo"):
            own.float()


def _maps(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ in ("Linear", "Conv1D")]


def sums_in_float64(model: Any) -> None:
    for own in _maps(model):
        own.forward = lambda x, own=own: (x.double() @ own.weight.double().T + own.bias.double()).float()


def in_pieces(model: Any) -> None:
    """Products of eight numbers at a time, the last first, the bias before all."""
    for own in _maps(model):

        def forward(x: Any, own: Any = own) -> Any:
            made = own.bias
            for i in reversed(range(0, x.shape[-1], 8)):
                made = made + x[..., i : i + 8] @ own.weight[:, i : i + 8].T
            return made

        own.forward = forward


def autocast(right: Any, args: Any, named: dict[str, Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return right(*args, **named)


HONEST: dict[str, Honest] = {
    **{model: Honest(Planted(model, {})) for model in (
        "bert", "gpt2", "ultrabert", "qwen3", "modernbert", "albert", "deberta-v2")},
    "-1e4 for the mask": Honest(Planted("bert", {}, attention=mask_as(0, -1e4))),
    "-inf for the mask": Honest(Planted(
        "bert", {}, attention={"mask": lambda mask: mask.masked_fill(mask != 0, -math.inf)})),
    "sums in float64": Honest(Planted("bert", {}, sums_in_float64)),
    "products in another order": Honest(Planted("bert", {}, in_pieces)),
    "T5 in float16, whose wo stays float32": Honest(Planted("t5", {}, half_as_transformers), "float16"),
    "BERT in float64": Honest(Planted("bert", {}, lambda model: model.double())),
    "BERT in float16": Honest(Planted("bert", {}, lambda model: model.half()), "float16"),
    "GPT-2 in float16": Honest(Planted("gpt2", {}, lambda model: model.half()), "float16"),
    "Qwen3 in float16": Honest(Planted("qwen3", {}, loaded_as("float16")), "float16"),
    "ModernBERT in float16": Honest(Planted("modernbert", {}, loaded_as("float16")), "float16"),
    "BERT in bfloat16": Honest(Planted("bert", {}, lambda model: model.bfloat16()), "bfloat16"),
    "Qwen3 in bfloat16": Honest(Planted("qwen3", {}, loaded_as("bfloat16")), "bfloat16"),
    "products alone in bfloat16 (autocast)": Honest(Planted("bert", {}, around("", autocast)), "bfloat16"),
}  # fmt: skip

VALUE, ACT = "encoder.layer.0.attention.self.value", "encoder.layer.1.intermediate.intermediate_act_fn"
WRONG: dict[str, Honest] = {
    "float16, relu": Honest(Planted(
        "bert", {ACT: "activation relu"}, several(put(ACT, lambda own, x: x.relu()), lambda model: model.half())),
        "float16"),
    "bfloat16, a weight transposed": Honest(Planted(
        "bert", {VALUE: "weight transposed"}, several(weight(VALUE, lambda x: x.T), lambda model: model.bfloat16())),
        "bfloat16"),
}  # fmt: skip
