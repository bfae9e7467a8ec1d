"""Vectors with a mistake, made by sentence-transformers and transformers: what servers and ports give when they err.

Nothing of what judges them is used here. `PLANTED` has for each mistake of all-MiniLM-L6-v2 the name that is right, and
how it is made; `OF_FOLDERS` has those of other kinds of models.
"""

from __future__ import annotations

import json
import shutil
import string
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import vector_port
from reference_files import REFERENCE

Array = np.ndarray[Any, Any]
Made = Callable[["Model", list[str]], Array]


class Model:
    """A folder opened by sentence-transformers, in float32, with some of what people change."""

    def __init__(self, folder: Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self.torch = torch
        self.whole = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        self.tokenizer: Any = self.whole.tokenizer
        self.bert: Any = self.whole[0].auto_model

    def encode(self, texts: list[str]) -> Array:
        return np.asarray(self.whole.encode(texts, batch_size=8, convert_to_tensor=True).float().numpy())

    @property
    def blocks(self) -> Any:
        return self.bert.encoder.layer if hasattr(self.bert, "encoder") else self.bert.layers


def unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def mean(rows: Array) -> Array:
    return np.asarray(rows.mean(0))


# -- mistakes ----------------------------------------------------------------------------------------------------


def by_hand(
    pool: Callable[[Array], Array] = mean, change: Callable[[Any], Any] = lambda batch: None, *,
    size: int = 1, padding: str | bool = True, pads: bool = False, state: int = -1, norm: bool = True,
) -> Made:  # fmt: skip
    """By transformers alone, `size` texts a request, their tokens changed after the tokenizer.

    pool: from the rows of one hidden state, with those of padding if `pads`.
    """

    def made(model: Model, texts: list[str]) -> Array:
        found, longest = list[Array](), model.whole.max_seq_length
        for i in range(0, len(texts), size):
            batch = model.tokenizer(
                texts[i : i + size], truncation=True, max_length=longest, padding=padding, return_tensors="pt"
            )
            masks = batch["attention_mask"].numpy().astype(bool)
            change(batch)
            with model.torch.no_grad():
                states = model.bert(**batch, output_hidden_states=True).hidden_states[state].float().numpy()
            found += [pool(x if pads else x[at[: len(x)]]) for x, at in zip(states, masks, strict=True)]
        return unit(np.stack(found)) if norm else np.stack(found)

    return made


def part(*ends: int | None) -> Callable[[Any], None]:
    """Some of the tokens; the first where none would be left."""

    def change(batch: Any) -> None:
        for name, x in batch.items():
            batch[name] = x[:, slice(*ends)] if x[:, slice(*ends)].shape[1] else x[:, :1]

    return change


def seen(batch: Any) -> None:
    """Padding gets attention weights."""
    batch["attention_mask"][...] = 1


def types_of_one(batch: Any) -> None:
    batch["token_type_ids"][...] = 1


def positions_from(start: int) -> Callable[[Any], None]:
    """Positions from another start; those beyond the table stay at its end."""

    def change(batch: Any) -> None:
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1 + start).clamp(max=511)

    return change


def on_text(change: Callable[[str], str]) -> Made:
    return lambda model, texts: model.encode([change(text) for text in texts])


def on_model(*changes: Callable[[Model], Any]) -> Made:
    def made(model: Model, texts: list[str]) -> Array:
        for change in changes:
            change(model)
        return model.encode(texts)

    return made


def with_tokenizer(**settings: Any) -> Made:
    """BERT's normalizer with other settings."""

    def change(model: Model) -> None:
        from tokenizers.normalizers import BertNormalizer

        known = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True}
        model.tokenizer.backend_tokenizer.normalizer = BertNormalizer(**{**known, **settings})

    return on_model(change)


def cut_at(length: int) -> Made:
    return on_model(lambda model: setattr(model.whole, "max_seq_length", length))


def set_eps(eps: float) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for module in model.bert.modules():
            for name in ("eps", "variance_epsilon"):
                if hasattr(module, name):
                    setattr(module, name, eps)

    return change


def set_activation(name: str, **options: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for block in model.blocks:
            inner, act = (block.mlp, "act_fn") if hasattr(block, "mlp") else (block.intermediate, "intermediate_act_fn")
            setattr(inner, act, getattr(model.torch.nn, name)(**options))

    return change


def without_last(model: Model) -> None:
    del model.blocks[-1]


def zero_rows(name: str) -> Callable[[Model], Any]:
    return lambda model: getattr(model.bert.embeddings, name).weight.data.zero_()


def rounded_weights(dtype: str) -> Callable[[Model], Any]:
    return lambda model: model.whole.to(getattr(model.torch, dtype)).float()


def computed_in(dtype: str) -> Callable[[Model], None]:
    return lambda model: model.whole.to(getattr(model.torch, dtype))


def int8_rows(model: Model) -> None:
    for linear in (module for module in model.bert.modules() if type(module).__name__ == "Linear"):
        step = linear.weight.data.abs().amax(1, keepdim=True) / 127
        linear.weight.data = (linear.weight.data / step).round() * step


def as_printed(x: Array) -> Array:
    return np.array([[float(f"{number:.7g}") for number in row] for row in x.tolist()], np.float32)


def no_pieces(model: Model) -> None:
    """Words that the vocabulary does not have whole are unknown."""
    model.tokenizer.backend_tokenizer.model.continuing_subword_prefix = "\0"


def split_at_spaces(model: Model) -> None:
    from tokenizers.pre_tokenizers import WhitespaceSplit

    model.tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()


HONEST: dict[str, tuple[str, Made]] = {
    "sentence-transformers": ("", lambda m, t: m.encode(t)),
    "eager attention": ("", on_model(
        lambda model: model.bert.set_attn_implementation("eager"))),
    "text by text": ("", by_hand()),
    "numbers of JSON, seven digits": ("", lambda m, t: as_printed(m.encode(t))),
    "stored as float16": ("float16", lambda m, t: m.encode(t).astype(np.float16).astype(np.float32)),
    **{f"{dtype} weights": (dtype, on_model(rounded_weights(dtype))) for dtype in ("float16", "bfloat16")},
    **{f"computed in {dtype}": (dtype, on_model(computed_in(dtype))) for dtype in ("float16", "bfloat16")},
    "computed in float16, pooled and normalized in float32": (
        "float16", lambda m, t: m.whole.half() and by_hand()(m, t)),
    "int8 weights, a scale for each row": ("int8", on_model(int8_rows)),
}  # fmt: skip

PLANTED: dict[str, tuple[str, Made]] = {
    "cls": ("pooling cls", by_hand(lambda rows: rows[0])),
    "max": ("pooling max", by_hand(lambda rows: rows.max(0))),
    "last": ("pooling lasttoken", by_hand(lambda rows: rows[-1])),
    "weighted": ("pooling weightedmean", by_hand(
        lambda rows: (rows * np.arange(1, len(rows) + 1)[:, None]).sum(0) / np.arange(1, len(rows) + 1).sum())),
    "not normalized": ("vectors not normalized", by_hand(norm=False)),
    "no special tokens": ("special tokens left out", by_hand(change=part(1, -1))),
    "no CLS": ("first special token left out", by_hand(change=part(1, None))),
    "no SEP": ("last special token left out", by_hand(change=part(None, -1))),
    "special tokens not pooled": ("special tokens left out of pooling", by_hand(
        lambda rows: rows[1:-1].mean(0) if len(rows) > 2 else rows.mean(0) * 0 + 1e-9)),
    "query prompt": ("'query: ' put before the texts", on_text(lambda text: f"query: {text}")),
    "passage prompt": ("'passage: ' put before the texts", on_text(lambda text: f"passage: {text}")),
    **{f"truncated at {count}": (f"truncated at {count} tokens", cut_at(count)) for count in (128, 512, 384)},
    "case kept": ("case kept", with_tokenizer(lowercase=False)),
    "accents kept": ("accents kept", with_tokenizer(strip_accents=False)),
    "no Chinese spaces": ("Chinese characters not set apart", with_tokenizer(handle_chinese_chars=False)),
    "control characters": ("control characters kept", with_tokenizer(clean_text=False)),
    "ASCII": ("text without letters beyond ASCII", on_text(lambda text: "".join(c for c in text if ord(c) < 128))),
    "Latin-1": ("text read as Latin-1", on_text(lambda text: text.encode("utf-8").decode("latin-1"))),
    "NFKC": ("text in NFKC", on_text(lambda text: unicodedata.normalize("NFKC", text))),
    "padding pooled, 256": ("padding pooled", by_hand(padding="max_length", pads=True)),
    "padding pooled by request": ("padding pooled", by_hand(size=8, pads=True)),
    "padding seen, 256": ("padding seen", by_hand(change=seen, padding="max_length")),
    "padding seen, pooled, 256": ("padding seen and pooled", by_hand(change=seen, padding="max_length", pads=True)),
    **{f"positions from {i}": (f"positions from {i}", by_hand(change=positions_from(i))) for i in (1, 2)},
    "types 1": ("type 1 for all tokens", by_hand(change=types_of_one)),
    "eps 1e-5": ("eps 1e-05", on_model(set_eps(1e-5))),
    "gelu by tanh": ("activation gelu_new", on_model(set_activation("GELU", approximate="tanh"))),
    "relu": ("activation relu", on_model(set_activation("ReLU"))),
    "silu": ("activation silu", on_model(set_activation("SiLU"))),
    "last block": ("last block missing", on_model(without_last)),
    "no positions": ("position rows left out", on_model(zero_rows("position_embeddings"))),
    "no types": ("type rows left out", on_model(zero_rows("token_type_embeddings"))),
    "truncated to 128 numbers": ("truncated to the first 128 numbers", lambda m, t: m.encode(t)[:, :128]),
    "truncated, normalized": ("truncated to the first 128 numbers and normalized again",
                              lambda m, t: unit(m.encode(t)[:, :128])),
    "another order": ("texts in another order", lambda m, t: m.encode(t)[::-1].copy()),
    "tanh in float16": ("activation gelu_new", on_model(
        set_activation("GELU", approximate="tanh"), rounded_weights("float16"))),
    "BGE's prompt": ("'Represent this sentence for searching relevant passages: ' put before the texts", on_text(
        lambda text: f"Represent this sentence for searching relevant passages: {text}")),
    "256 beside the special ones": ("truncated at 256 tokens beside the special ones", cut_at(258)),
    "the beginning truncated": ("truncated at the beginning", on_model(
        lambda model: setattr(model.tokenizer, "truncation_side", "left"))),
    "1000 letters": ("text cut at 1000 letters", on_text(lambda text: text[:1000])),
    "no punctuation": ("text without punctuation", on_text(
        lambda text: "".join(c for c in text if c not in string.punctuation))),
    "no pieces": ("words not cut into pieces", on_model(no_pieces)),
    "punctuation in words": ("punctuation not set apart", on_model(split_at_spaces)),
    "the third hidden state": ("hidden_states.3 pooled", by_hand(state=3)),
    "cls in float16": ("pooling cls", lambda m, t: m.whole.half() and by_hand(lambda rows: rows[0])(m, t)),
}  # fmt: skip


# -- other kinds of models than all-MiniLM-L6-v2 -------------------------------------------------------------------

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
OF_FOLDERS: dict[str, dict[str, Made]] = {
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
HONEST_OF_FOLDERS = ("sentence-transformers", "float16 weights", "computed in float16", "computed in bfloat16")


# numbers that no mistake of the list gives
UNLIKE: dict[str, Callable[[Array], Array]] = {
    "noise": lambda x: x + np.abs(x).mean() * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape),
    "absolute": lambda x: np.abs(x) + np.abs(x).mean() * np.float32(0.1),
    "turned": lambda x: x[:, ::-1].copy(),
}
