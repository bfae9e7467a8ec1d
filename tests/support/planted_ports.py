"""Makes ports with planted mistakes of transformers' own modules, changed or patched: nothing of what judges them has
computed them. `planted_mistakes` has the mistakes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import encoders
from head_files import HEAD_CASE
from ports import arrays, verify_encoder
from safetensors.numpy import load_file, save_file

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.reference import Reference
from minibert.verify.report import Comparison
from minibert.verify.subjects import EncoderSubject, encoder_batches
from minibert.verify.traces import Traces


class _Torch:
    """torch, imported at its first use: where it is not installed, the names of mistakes can be read all the same."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()
Change = Callable[[Any], Any]
KINDS = ("plain", "left_pad", "long")  # in the long one a window shows
DEPTH = 3


class Planted(NamedTuple):
    """One port: a change made to the model's modules, and a patch of its attention.

    wrong: the modules in which it shows, each with the name of its mistake; "" says that none is given.
    """

    model: str
    wrong: Mapping[str, str]
    change: Change = lambda model: None
    attention: Mapping[str, Any] = {}
    prepare: Callable[[dict[str, Any]], None] = lambda tensors: None  # of the checkpoint, before both open it
    settings: Mapping[str, Any] = {}  # other ones of its config
    kinds: tuple[str, ...] = KINDS  # of batches


def settings(name: str) -> dict[str, Any]:
    """MiniLM's shape, small: 12 heads, three blocks."""
    if name == "gpt2":
        return {"n_embd": 48, "n_head": 6, "n_layer": DEPTH, "n_inner": 96, "n_positions": 48}
    if name in encoders.T5_LIKE:
        return {"num_layers": DEPTH}
    in_turns = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    others = {
        "bert": {"num_attention_heads": 12, "hidden_size": 48, "intermediate_size": 96},
        "modernbert": {"global_attn_every_n_layers": 2}, "gemma3_text": in_turns, "ultrabert": in_turns,
    }  # fmt: skip
    return {"num_hidden_layers": DEPTH, **others.get(name, {})}


def written(root: Path, port: Planted) -> Path:
    """A folder of this model with seeded weights, then prepared; of a head a committed one."""
    if port.model in HEAD_CASE:
        return HEAD_CASE[port.model].folder
    name, folder = port.model, root / port.model
    width, encoders.DIM = encoders.DIM, 48 if name in ("bert", "gpt2") else encoders.DIM
    try:
        encoders.write(folder, name, **{**settings(name), **port.settings})
    finally:
        encoders.DIM = width
    tensors = load_file(folder / "model.safetensors")
    port.prepare(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def ported(folder: Path, port: Planted) -> tuple[Traces, Traces]:
    """Inputs, and what transformers gives for them with the change: of each batch what `save` writes."""
    with load_encoder(folder) as encoder:
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if kind in port.kinds}
        reference = Reference(EncoderSubject(encoder, partial(load_encoder, folder)), str(folder))
        model: Any = reference._model
        port.change(model)
        try:
            with patched(model, port.attention) as scores:
                traces = {}
                for kind, batch in inputs.items():
                    traces[kind] = reference.trace(batch)
                    traces[kind] |= {reference._subject.scores[i]: x for i, x in scores.items()}
                for key in reference._subject.pairs if "long" in traces else ():
                    del traces["long"][key]
                return inputs, traces
        finally:
            getattr(model, "undo", bool)()


def judged(port: Planted, folder: Path, states_alone: bool = False) -> Comparison:
    """What verify says of it; `states_alone`: of a file with its hidden states and nothing else."""
    where = written(folder, port)
    inputs, traces = ported(where, port)
    for kind in traces if states_alone else ():
        traces[kind] = {key: x for key, x in traces[kind].items() if key.startswith("hidden_states.")}
    return verify_encoder(where, arrays(inputs, traces))


# -- attention by hand, in the place of transformers' own function ------------------------------------------------


@contextmanager
def patched(model: Any, wrong: Mapping[str, Any]) -> Iterator[dict[int, Any]]:
    """Attention with what is wrong in all blocks; gives their scores before the mask.

    wrong: "qkv" changes queries, keys and values, "mask" the mask, "hide" adds it to the scores, "after" changes the
    weights. A batch without a mask, as BERT's without padding, calls only "qkv".
    """
    kept: dict[int, Any] = {}
    if not wrong:
        yield kept
        return
    where = importlib.import_module(type(model).__module__)
    with mock.patch.object(where, "eager_attention_forward", partial(by_hand, wrong, kept)):
        yield kept


def by_hand(
    wrong: Mapping[str, Any], kept: Any, module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: Any = None, **_: Any
) -> Any:
    q, k, v = wrong.get("qkv", lambda *projections: projections)(q, k, v)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    kept[module.layer_idx] = scores.numpy()
    added = None if mask is None else wrong.get("mask", lambda mask: mask)(mask)
    total = scores if added is None else wrong.get("hide", torch.add)(scores, added)
    weights = torch.nn.functional.softmax(total, dim=-1)  # as transformers calls it: its argument is watched
    if mask is not None:
        weights = wrong.get("after", lambda weights, mask: weights)(weights, mask)
    return (weights @ v).transpose(1, 2).contiguous(), weights


def mask_as(kept: float, hidden: float) -> Mapping[str, Any]:
    return {"mask": lambda mask: mask * 0 + (mask == 0) * kept + (mask != 0) * hidden}


# -- changes of modules --------------------------------------------------------------------------------------------


def weight(path: str, change: Change, name: str = "weight") -> Change:
    """Another weight."""

    def changed(model: Any) -> None:
        parameter = getattr(model.get_submodule(path), name)
        parameter.data = change(parameter.data).contiguous()

    return changed


def bias(path: str, change: Change = lambda bias: bias * 0) -> Change:
    return weight(path, change, "bias")


def several(*changes: Change) -> Change:
    return lambda model: [change(model) for change in changes]


def in_blocks(path: str, change: Callable[[str], Change]) -> Change:
    """A change of each block: `path` with its number for {i}."""
    return several(*(change(path.format(i=i)) for i in range(DEPTH)))


def called(path: str, made: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Change:
    """Another forward of a module: from the module, its arguments, and those that are passed by name."""

    def changed(model: Any) -> None:
        own = model.get_submodule(path)
        own.forward = lambda *args, **named: made(own, args or (named.pop("hidden_states"),), named)

    return changed


def around(path: str, made: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Change:
    """Another forward of a module, or of the whole model: from its own forward and the arguments."""

    def changed(model: Any) -> None:
        own = model.get_submodule(path)
        own.forward = lambda *args, right=own.forward, **named: made(right, args, named)

    return changed


def put(path: str, formula: Callable[[Any, Any], Any]) -> Change:
    """A formula in the place of a module, of the module and its rows."""
    return called(path, lambda own, args, named: formula(own, args[0]))


def setting(path: str, **values: Any) -> Change:
    """Other attributes of a module, as its eps, or of the config, after the model has been made."""

    def changed(model: Any) -> None:
        own = model.config if path == "config" else model.get_submodule(path)
        for name, value in values.items():
            assert getattr(own, name) != value
            setattr(own, name, value)

    return changed


def taken(path: str, other: str) -> Change:
    """Another module's weight and bias."""
    return lambda model: model.get_submodule(path).load_state_dict(model.get_submodule(other).state_dict())


def replaced(name: str, made: Callable[[Any], Any]) -> Change:
    """Another function in the model's own file, made of the one that is there, which `ported` puts back."""

    def changed(model: Any) -> None:
        where = importlib.import_module(type(model).__module__)
        right = getattr(where, name)
        setattr(where, name, made(right))
        model.undo = lambda: setattr(where, name, right)

    return changed


def frequencies(change: Change) -> Change:
    """Other frequencies of a rotation."""

    def changed(model: Any) -> None:
        own = model.rotary_emb.inv_freq.data
        own.copy_(change(own))

    return changed


def terms(change: Callable[[Callable[..., Any], Any], Any]) -> Change:
    """DeBERTa's scores with other terms, whose number the scale still has: from a function that gives the terms of one
    name, or of both, for other distances too, and the distances.
    """

    def changed(model: Any) -> None:
        for layer in model.encoder.layer:
            own = layer.attention.self
            own.disentangled_attention_bias = partial(other, own, own.disentangled_attention_bias)

    def other(own: Any, right: Any, q: Any, k: Any, distances: Any, *rest: Any) -> Any:
        def of(distances: Any, *types: str) -> Any:
            own.pos_att_type, both = types or own.pos_att_type, own.pos_att_type
            made = right(q, k, distances, *rest)
            own.pos_att_type = both
            return made

        return change(of, distances)

    return changed


def every(path: str, name: str) -> dict[str, str]:
    return {path.format(i=i): name for i in range(DEPTH)}
