"""Vectors of other kinds of models than all-MiniLM-L6-v2, right and with a mistake, made by sentence-transformers.

Nothing of what judges them is used here. A mistake is a function that changes the opened folder, and perhaps the texts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import vector_port
from planted_vectors import Array
from reference_files import REFERENCE

Change = Callable[[Any], "Callable[[str], str] | None"]  # of a SentenceTransformer; may give what is done to a text

TEXTS = ["we lived above the clouds", "the clouds", "above the clouds we lived.", "we lived", "clouds!", "the we above",
         "THE CLOUDS", "é ü a", "e u a", "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h",
         "the clouds above we lived the clouds above", "a", "z y x", "clouds above", "we lived the lived"]  # fmt: skip
FOLDERS = ("cls", "dense", "last-token", "prompts", "mpnet", "bfloat16")  # "bfloat16": one whose file is so


def write(name: str, folder: Path) -> Path:
    """One of `FOLDERS`: a committed one, one with weights in bfloat16, or an MPNet with mean and Normalize."""
    if name == "mpnet":
        made = vector_port.write(folder / name, kind="mpnet")
        for file in ("tokenizer.json", "tokenizer_config.json"):  # transformers' own of MPNet wants its own tokens
            shutil.copy(REFERENCE / "sentences-dense" / file, made / file)
        return made
    made = folder / name
    shutil.copytree(REFERENCE / f"sentences-{'dense' if name == 'bfloat16' else name}", made)
    if name == "bfloat16":
        import torch
        from safetensors.torch import load_file, save_file

        tensors = load_file(made / "model.safetensors")
        save_file({key: x.to(torch.bfloat16) for key, x in tensors.items()}, made / "model.safetensors")
        config = json.loads((made / "config.json").read_text("utf-8"))
        (made / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}), "utf-8")
    return made


def vectors(folder: Path, change: Change | None = None) -> Array:
    """Vectors of `TEXTS`, in float32 but where the change says otherwise."""
    import torch
    from sentence_transformers import SentenceTransformer

    whole = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    on_text = change(whole) if change else None
    texts = [on_text(text) for text in TEXTS] if on_text else TEXTS
    found = whole.encode(texts, batch_size=4, convert_to_tensor=True)
    return np.asarray(found.float().numpy())


# -- changes -----------------------------------------------------------------------------------------------------


def blocks(whole: Any) -> Any:
    model = whole[0].auto_model
    return model.encoder.layer if hasattr(model, "encoder") else model.layers


def pooling(name: str) -> Change:
    def change(whole: Any) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        own = whole[1]
        whole[1] = Pooling(whole[0].get_embedding_dimension(), pooling_mode=name, include_prompt=own.include_prompt)

    return change


def without(kind: str) -> Change:
    def change(whole: Any) -> None:
        del whole[next(i for i, module in enumerate(whole) if type(module).__name__ == kind)]

    return change


def eps(value: float) -> Change:
    def change(whole: Any) -> None:
        for module in whole[0].modules():
            for name in ("eps", "variance_epsilon"):
                if hasattr(module, name):
                    setattr(module, name, value)

    return change


def gelu_by_tanh(whole: Any) -> None:
    import torch

    for block in blocks(whole):
        inner, name = (block.mlp, "act_fn") if hasattr(block, "mlp") else (block.intermediate, "intermediate_act_fn")
        setattr(inner, name, torch.nn.GELU(approximate="tanh"))


def last_block(whole: Any) -> None:
    del blocks(whole)[-1]


def no_special_tokens(whole: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    whole.tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A", "$A $B", [])


def to(dtype: str, back: bool) -> Change:
    def change(whole: Any) -> None:
        import torch

        whole.to(getattr(torch, dtype))
        if back:
            whole.float()

    return change


def on_text(function: Callable[[str], str]) -> Change:
    return lambda whole: function


def no_prompt(whole: Any) -> None:
    whole.default_prompt_name = None


COMMON: dict[str, Change] = {
    "pooling max": pooling("max"),
    "pooling weightedmean": pooling("weightedmean"),
    "last block missing": last_block,
    "activation gelu_new": gelu_by_tanh,
    "eps 1e-05": eps(1e-5),
    "'query: ' put before the texts": on_text(lambda text: f"query: {text}"),
    "text without letters beyond ASCII": on_text(lambda text: "".join(c for c in text if ord(c) < 128)),
    "special tokens left out": no_special_tokens,
}
# eps 1e-05 is MPNet's own; in the BERT with a Dense it moves no vector by more than 1e-5
SHOWN = {name: change for name, change in COMMON.items() if name != "eps 1e-05"}
PLANTED: dict[str, dict[str, Change]] = {
    "cls": {**COMMON, "pooling mean": pooling("mean")},
    "dense": {**SHOWN, "pooling cls": pooling("cls"), "vectors not normalized": without("Normalize"),
              "Dense left out": without("Dense")},
    "last-token": {**COMMON, "pooling mean": pooling("mean"), "vectors not normalized": without("Normalize"),
                   "text lower-cased": on_text(str.lower)},
    "prompts": {**COMMON, "prompt missing": no_prompt, "pooling cls": pooling("cls")},
    "mpnet": {**SHOWN, "vectors not normalized": without("Normalize"), "pooling cls": pooling("cls"),
              "prompt missing": no_prompt},
    "bfloat16": {**SHOWN, "vectors not normalized": without("Normalize")},
}  # fmt: skip
HONEST: dict[str, Change] = {
    "float32": lambda whole: None,
    "float16 weights": to("float16", True),
    "computed in float16": to("float16", False),
    "computed in bfloat16": to("bfloat16", False),
}


def unlike(made: Array) -> dict[str, Array]:
    """Numbers that no mistake of the list gives."""
    noise = np.sin(np.arange(made.size, dtype=np.float32)).reshape(made.shape)
    size = np.abs(made).mean()
    return {
        "noise": made + size * noise,
        "absolute": np.abs(made) + size * np.float32(0.1),
        "turned": made[:, ::-1].copy(),
    }
