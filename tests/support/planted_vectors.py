"""Vectors with a mistake, made by sentence-transformers and transformers: what servers and ports give when they err.

Nothing of what judges them is used here. `PLANTED` has for each mistake the name that is right, and how it is made.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Made = Callable[["Model", list[str]], Array]


class Model:
    """A folder opened by sentence-transformers, in float32, with some of what people change."""

    def __init__(self, folder: Path) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self.torch, self.folder = torch, folder
        self.whole = SentenceTransformer(str(folder), device="cpu", model_kwargs={"torch_dtype": torch.float32})
        self.tokenizer: Any = self.whole.tokenizer
        self.bert: Any = self.whole[0].auto_model
        self.longest: int = self.whole.max_seq_length

    def encode(self, texts: list[str], **options: Any) -> Array:
        return np.asarray(self.whole.encode(texts, batch_size=8, **options), np.float32)

    def rows(self, text: str, **options: Any) -> tuple[Any, Any]:
        """Ids and last hidden state of one text, by transformers alone."""
        known = {"truncation": True, "max_length": self.longest, "return_tensors": "pt", **options}
        batch = self.tokenizer([text], **known)
        with self.torch.no_grad():
            return batch, self.bert(**batch).last_hidden_state[0].numpy()

    def each(self, texts: list[str], pool: Callable[[Any, Array], Array], norm: bool = True, **options: Any) -> Array:
        """Text by text, pooled by `pool` from mask and rows."""
        made = []
        for text in texts:
            batch, rows = self.rows(text, **options)
            made.append(pool(batch, rows))
        return unit(np.stack(made)) if norm else np.stack(made)

    def on_ids(self, texts: list[str], change: Callable[[list[int]], list[int]], **more: Any) -> Array:
        """Text by text, with ids changed after the tokenizer."""
        made = []
        for text in texts:
            ids = change(self.tokenizer([text], truncation=True, max_length=self.longest)["input_ids"][0])
            given = {name: self.torch.tensor([value(ids)]) for name, value in more.items()}
            with self.torch.no_grad():
                made.append(self.bert(self.torch.tensor([ids]), **given).last_hidden_state[0].numpy().mean(0))
        return unit(np.stack(made))

    def modules(self, kind: str) -> list[Any]:
        return [module for module in self.bert.modules() if type(module).__name__ == kind]


def unit(x: Array) -> Array:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def mean(batch: Any, rows: Array) -> Array:
    return np.asarray(rows.mean(0))


def tokenizer_with(model: Model, **settings: Any) -> None:
    """BERT's normalizer with other settings."""
    from tokenizers.normalizers import BertNormalizer

    known = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True}
    model.tokenizer.backend_tokenizer.normalizer = BertNormalizer(**{**known, **settings})


# -- mistakes ----------------------------------------------------------------------------------------------------


def pooled(pool: Callable[[Any, Array], Array], norm: bool = True, **options: Any) -> Made:
    return lambda model, texts: model.each(texts, pool, norm, **options)


def by_tokenizer(**settings: Any) -> Made:
    def made(model: Model, texts: list[str]) -> Array:
        tokenizer_with(model, **settings)
        return model.encode(texts)

    return made


def on_text(change: Callable[[str], str]) -> Made:
    return lambda model, texts: model.encode([change(text) for text in texts])


def cut_at(length: int) -> Made:
    def made(model: Model, texts: list[str]) -> Array:
        model.whole.max_seq_length = length
        return model.encode(texts)

    return made


def padded_to(length: int, seen: bool, pools: bool) -> Made:
    """Padding that gets attention weights (`seen`), or is pooled."""

    def made(model: Model, texts: list[str]) -> Array:
        found = []
        for text in texts:
            batch = model.tokenizer(
                [text], truncation=True, max_length=length, padding="max_length", return_tensors="pt"
            )
            mask = batch["attention_mask"][0].numpy().astype(bool)
            if seen:
                batch["attention_mask"][...] = 1
            with model.torch.no_grad():
                rows = model.bert(**batch).last_hidden_state[0].numpy()
            found.append(rows.mean(0) if pools else rows[mask].mean(0))
        return unit(np.stack(found))

    return made


def in_requests(size: int, side: str = "right", seen: bool = False, pools: bool = False) -> Made:
    """So many texts a request, padded to its longest on a side, by a program that knows no position_ids."""

    def made(model: Model, texts: list[str]) -> Array:
        model.tokenizer.padding_side = side
        found: list[Array] = []
        for i in range(0, len(texts), size):
            batch = model.tokenizer(
                texts[i : i + size], truncation=True, max_length=model.longest, padding=True, return_tensors="pt"
            )
            masks = batch["attention_mask"].numpy().astype(bool)
            if seen:
                batch["attention_mask"] = model.torch.ones_like(batch["input_ids"])
            with model.torch.no_grad():
                rows = model.bert(**batch).last_hidden_state.numpy()
            found += [each.mean(0) if pools else each[mask].mean(0) for each, mask in zip(rows, masks, strict=True)]
        return unit(np.stack(found))

    return made


def on_ids(change: Callable[[list[int]], list[int]] = lambda ids: ids, **more: Any) -> Made:
    return lambda model, texts: model.on_ids(texts, change, **more)


def on_model(change: Callable[[Model], Any], **options: Any) -> Made:
    def made(model: Model, texts: list[str]) -> Array:
        change(model)
        return model.encode(texts, **options)

    return made


def set_eps(eps: float) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for norm in model.modules("LayerNorm"):
            norm.eps = eps

    return change


def set_activation(name: str, **options: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for layer in model.bert.encoder.layer:
            layer.intermediate.intermediate_act_fn = getattr(model.torch.nn, name)(**options)

    return change


def leave_block(at: int) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        del model.bert.encoder.layer[at]

    return change


def zero_rows(name: str) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        getattr(model.bert.embeddings, name).weight.data[...] = 0

    return change


def rounded_weights(dtype: str) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.whole.to(getattr(model.torch, dtype)).float()

    return change


def computed_in(dtype: str) -> Callable[[Model], None]:
    return lambda model: model.whole.to(getattr(model.torch, dtype))


def int8_rows(model: Model) -> None:
    for linear in model.modules("Linear"):
        step = linear.weight.data.abs().amax(1, keepdim=True) / 127
        linear.weight.data = (linear.weight.data / step).round() * step


def eager(model: Model) -> None:
    model.bert.set_attn_implementation("eager")


def both(*changes: Callable[[Model], None]) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        for each in changes:
            each(model)

    return change


def plus(start: int) -> Callable[[list[int]], list[int]]:
    """Positions from another start; those beyond the table stay at its end."""
    return lambda ids: [min(i + start, 511) for i in range(len(ids))]


def cut_last(x: Array, width: int, norm: bool) -> Array:
    return unit(x[:, :width]) if norm else x[:, :width]


def as_printed(x: Array) -> Array:
    return np.array([[float(f"{number:.7g}") for number in row] for row in x.tolist()], np.float32)


def reversed_rows(x: Array) -> Array:
    return x[::-1].copy()


def states(pick: Callable[[Any], Any]) -> Made:
    """The mean of other rows: from all hidden states."""

    def made(model: Model, texts: list[str]) -> Array:
        found = []
        for text in texts:
            batch = model.tokenizer([text], truncation=True, max_length=model.longest, return_tensors="pt")
            with model.torch.no_grad():
                found.append(pick(model.bert(**batch, output_hidden_states=True).hidden_states)[0].mean(0).numpy())
        return unit(np.stack(found))

    return made


def no_pieces(model: Model) -> None:
    """Words that the vocabulary does not have whole are unknown."""
    model.tokenizer.backend_tokenizer.model.continuing_subword_prefix = "\0"


def split_at_spaces(model: Model) -> None:
    from tokenizers.pre_tokenizers import WhitespaceSplit

    model.tokenizer.backend_tokenizer.pre_tokenizer = WhitespaceSplit()


def other_end(model: Model) -> None:
    model.tokenizer.truncation_side = "left"


HONEST: dict[str, tuple[str, Made]] = {
    "sentence-transformers": ("", lambda m, t: m.encode(t)),
    "eager attention": ("", on_model(eager)),
    "text by text": ("", pooled(mean)),
    "numbers of JSON, seven digits": ("", lambda m, t: as_printed(m.encode(t))),
    "float16 weights": ("float16", on_model(rounded_weights("float16"))),
    "computed in float16": ("float16", on_model(computed_in("float16"))),
    "stored as float16": ("float16", lambda m, t: m.encode(t).astype(np.float16).astype(np.float32)),
    "bfloat16 weights": ("bfloat16", on_model(rounded_weights("bfloat16"))),
    "computed in bfloat16": ("bfloat16", lambda m, t: m.whole.to(m.torch.bfloat16).encode(
        t, convert_to_tensor=True).float().numpy()),
    "computed in float16, pooled and normalized in float32": ("float16", lambda m, t: m.whole.half() and m.each(
        t, lambda batch, rows: rows.astype(np.float32).mean(0))),
    "int8 weights, a scale for each row": ("int8", on_model(int8_rows)),
}  # fmt: skip

PLANTED: dict[str, tuple[str, Made]] = {
    "cls": ("pooling cls", pooled(lambda batch, rows: rows[0])),
    "max": ("pooling max", pooled(lambda batch, rows: rows.max(0))),
    "last": ("pooling lasttoken", pooled(lambda batch, rows: rows[-1])),
    "weighted": ("pooling weightedmean", pooled(
        lambda batch, rows: (rows * np.arange(1, len(rows) + 1)[:, None]).sum(0) / np.arange(1, len(rows) + 1).sum())),
    "not normalized": ("vectors not normalized", pooled(mean, norm=False)),
    "no special tokens": ("special tokens left out", on_ids(lambda ids: ids[1:-1] or ids[:1])),
    "no CLS": ("first special token left out", on_ids(lambda ids: ids[1:])),
    "no SEP": ("last special token left out", on_ids(lambda ids: ids[:-1])),
    "special tokens not pooled": ("special tokens left out of pooling", pooled(
        lambda batch, rows: rows[1:-1].mean(0) if len(rows) > 2 else rows.mean(0) * 0 + 1e-9)),
    "query prompt": ("'query: ' put before the texts", on_text(lambda text: f"query: {text}")),
    "passage prompt": ("'passage: ' put before the texts", on_text(lambda text: f"passage: {text}")),
    "truncated at 128": ("truncated at 128 tokens", cut_at(128)),
    "truncated at 512": ("truncated at 512 tokens", cut_at(512)),
    "truncated at 384": ("truncated at 384 tokens", cut_at(384)),
    "case kept": ("case kept", by_tokenizer(lowercase=False)),
    "accents kept": ("accents kept", by_tokenizer(strip_accents=False)),
    "no Chinese spaces": ("Chinese characters not set apart", by_tokenizer(handle_chinese_chars=False)),
    "control characters": ("control characters kept", by_tokenizer(clean_text=False)),
    "ASCII": ("text without letters beyond ASCII", on_text(lambda text: "".join(c for c in text if ord(c) < 128))),
    "Latin-1": ("text read as Latin-1", on_text(lambda text: text.encode("utf-8").decode("latin-1"))),
    "NFKC": ("text in NFKC", on_text(lambda text: unicodedata.normalize("NFKC", text))),
    "padding pooled, 256": ("padding pooled", padded_to(256, False, True)),
    "padding pooled by request": ("padding pooled", in_requests(8, pools=True)),
    "padding seen, 256": ("padding seen", padded_to(256, True, False)),
    "padding seen, pooled, 256": ("padding seen and pooled", padded_to(256, True, True)),
    "positions from 1": ("positions from 1", on_ids(position_ids=plus(1))),
    "positions from 2": ("positions from 2", on_ids(position_ids=plus(2))),
    "types 1": ("type 1 for all tokens", on_ids(token_type_ids=lambda ids: [1] * len(ids))),
    "eps 1e-5": ("eps 1e-05", on_model(set_eps(1e-5))),
    "gelu by tanh": ("activation gelu_new", on_model(set_activation("GELU", approximate="tanh"))),
    "relu": ("activation relu", on_model(set_activation("ReLU"))),
    "silu": ("activation silu", on_model(set_activation("SiLU"))),
    "last block": ("last block missing", on_model(leave_block(-1))),
    "no positions": ("position rows left out", on_model(zero_rows("position_embeddings"))),
    "no types": ("type rows left out", on_model(zero_rows("token_type_embeddings"))),
    "truncated to 128 numbers": ("truncated to the first 128 numbers", lambda m, t: cut_last(m.encode(t), 128, False)),
    "truncated, normalized": ("truncated to the first 128 numbers and normalized again",
                              lambda m, t: cut_last(m.encode(t), 128, True)),
    "another order": ("texts in another order", lambda m, t: reversed_rows(m.encode(t))),
    "tanh in float16": ("activation gelu_new", on_model(
        both(set_activation("GELU", approximate="tanh"), rounded_weights("float16")))),
    "BGE's prompt": ("'Represent this sentence for searching relevant passages: ' put before the texts", on_text(
        lambda text: f"Represent this sentence for searching relevant passages: {text}")),
    "256 beside the special ones": ("truncated at 256 tokens beside the special ones", cut_at(258)),
    "the beginning truncated": ("truncated at the beginning", on_model(other_end)),
    "1000 letters": ("text cut at 1000 letters", on_text(lambda text: text[:1000])),
    "no punctuation": ("text without punctuation", on_text(
        lambda text: "".join(c for c in text if c not in string.punctuation))),
    "no pieces": ("words not cut into pieces", on_model(no_pieces)),
    "punctuation in words": ("punctuation not set apart", on_model(split_at_spaces)),
    "the third hidden state": ("hidden_states.3 pooled", states(lambda states: states[3])),
    "cls in float16": ("pooling cls", lambda m, t: m.whole.half() and m.each(
        t, lambda batch, rows: rows[0].astype(np.float32))),
}  # fmt: skip
