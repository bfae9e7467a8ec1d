"""Vectors of other kinds of models than all-MiniLM-L6-v2, right and with a mistake, made by sentence-transformers.

Nothing of what judges them is used here. A mistake is made as in `planted_vectors`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import vector_port
from planted_vectors import (
    Array,
    Made,
    Model,
    computed_in,
    on_model,
    on_text,
    rounded_weights,
    set_activation,
    set_eps,
    without_last,
)
from reference_files import REFERENCE

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


def vectors(folder: Path, made: Made = Model.encode) -> Array:
    """Vectors of `TEXTS`, in float32 but where `made` says otherwise."""
    return made(Model(folder), TEXTS)


# -- changes -----------------------------------------------------------------------------------------------------


def pooling(name: str) -> Made:
    def change(model: Model) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        whole, own = model.whole, model.whole[1]
        whole[1] = Pooling(whole[0].get_embedding_dimension(), pooling_mode=name, include_prompt=own.include_prompt)

    return on_model(change)


def without(kind: str) -> Made:
    def change(model: Model) -> None:
        del model.whole[next(i for i, module in enumerate(model.whole) if type(module).__name__ == kind)]

    return on_model(change)


def no_special_tokens(model: Model) -> None:
    from tokenizers.processors import TemplateProcessing

    model.whole.tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A", "$A $B", [])


NO_PROMPT = on_model(lambda model: setattr(model.whole, "default_prompt_name", None))
COMMON: dict[str, Made] = {
    "pooling max": pooling("max"),
    "pooling weightedmean": pooling("weightedmean"),
    "last block missing": on_model(without_last),
    "activation gelu_new": on_model(set_activation("GELU", approximate="tanh")),
    "eps 1e-05": on_model(set_eps(1e-5)),
    "'query: ' put before the texts": on_text(lambda text: f"query: {text}"),
    "text without letters beyond ASCII": on_text(lambda text: "".join(c for c in text if ord(c) < 128)),
    "special tokens left out": on_model(no_special_tokens),
}
# eps 1e-05 is MPNet's own; in the BERT with a Dense it moves no vector by more than 1e-5
SHOWN = {name: change for name, change in COMMON.items() if name != "eps 1e-05"}
PLANTED: dict[str, dict[str, Made]] = {
    "cls": {**COMMON, "pooling mean": pooling("mean")},
    "dense": {**SHOWN, "pooling cls": pooling("cls"), "vectors not normalized": without("Normalize"),
              "Dense left out": without("Dense")},
    "last-token": {**COMMON, "pooling mean": pooling("mean"), "vectors not normalized": without("Normalize"),
                   "text lower-cased": on_text(str.lower)},
    "prompts": {**COMMON, "prompt missing": NO_PROMPT, "pooling cls": pooling("cls")},
    "mpnet": {**SHOWN, "vectors not normalized": without("Normalize"), "pooling cls": pooling("cls"),
              "prompt missing": NO_PROMPT},
    "bfloat16": {**SHOWN, "vectors not normalized": without("Normalize")},
}  # fmt: skip
HONEST: dict[str, Made] = {
    "float32": Model.encode,
    "float16 weights": on_model(rounded_weights("float16")),
    "computed in float16": on_model(computed_in("float16")),
    "computed in bfloat16": on_model(computed_in("bfloat16")),
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
