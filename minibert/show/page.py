"""A text's way through the layer as one HTML page: what `minibert explain --html` writes.

The page is one string that needs nothing else: no network, no framework, no font. `page.html` is its template, with the
style and the script; this file writes its tables and packs its numbers. They are the numbers of the trace, to the bit:
the script only draws them. For a whole model `page_blocks` adds a second part. A page has 4 bytes for each number,
times 4/3 for base64: about 16 kB for a token of a layer that is 768 wide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import input_layer as equations
from minibert.equations.input_layer import Array
from minibert.families.modules import LayerNorm
from minibert.families.steps import Lookup, Norm, Positions, Project, Step
from minibert.files.writing import write_output
from minibert.models.input_layer import EmbeddingLayer

from .analysis import cosine_similarity
from .explain import by_hand, function_of, looked_up, name_of
from .page_parts import BYTES, as_json, check_size, docstring, packed

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

# what each kind of lookup says about a token
MEANING = {
    "input_ids": "which token it is",
    "token_type_ids": "first or second text",
    "position_ids": "where it stands",
}
# not printable, but allowed in a text: the last two join letters and emoji
KEPT = "\n\t\u200c\u200d"
# the formula that counts positions, by the rule of the step
COUNTS: dict[str, Callable[..., Array]] = {
    "count": equations.default_position_ids,
    "padding": equations.padding_position_ids,
    "mask": equations.mask_position_ids,
}


class Stage(NamedTuple):
    """One band of colours: `sign` says how it comes from those above: "+" added, "=" their sum, "→" made of it.

    rows (seq, dim). `step` made them, None where they are a sum. `taken` are their numbers in the step's table, None
    where it has none.
    """

    name: str
    sign: str
    rows: Array
    step: Step | None = None
    taken: Array | None = None

    @property
    def tells(self) -> str:
        """What these numbers mean, in a few words."""
        if isinstance(self.step, Lookup):
            return MEANING.get(self.step.ids, "")
        return {Norm: "mean 0, variance 1, then weight and bias", Project: "to another width"}.get(type(self.step), "")


class Normed(NamedTuple):
    """LayerNorm's steps for all tokens in float64: before, normalised, after; each (seq, dim)."""

    module: LayerNorm
    before: Array
    standard: Array
    after: Array


def page(model: EmbeddingLayer | Encoder, text: str, text_pair: str | None = None, truncation: bool = False) -> str:
    """Give the page: of an input layer, or of a whole model, whose blocks make a second part.

    Raises as `EmbeddingLayer.tokenize` and a call of the layer; ValueError if it would have more than 10 MB.
    """
    layer, encoder = (model, None) if isinstance(model, EmbeddingLayer) else (model.embeddings, model)
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation and layer.max_length is not None)
    input_ids, mask = batch["input_ids"], batch["attention_mask"]
    tokens = [_visible(token) for token in layer.tokenizer.tokens(input_ids[0])]
    # numbers for each pair of tokens: a similarity, and one of each head of each block
    seq, pairs = len(tokens), 1 if encoder is None else 1 + len(encoder.stack.blocks) * encoder.stack.heads
    check_size(pairs * seq * seq * layer.dtype.itemsize * BYTES, layer, seq, pairs)  # before anything large is computed
    encoder = encoder if seq else None  # where there is no token, nothing enters a block
    trace = (encoder or layer).trace(**batch)
    ids = looked_up(layer.steps, batch, trace)
    shown = list(stages(layer, trace, ids, mask))
    groups, normed, output = by_width(shown), _normed(layer, shown), shown[-1].rows
    positions = next((stage for stage in shown if isinstance(stage.step, Positions)), None)
    data = {
        "float": output.dtype.str[1:],
        "tokens": tokens,
        "groups": [_group(group) for group in groups],
        "norm": None if normed is None else _norm_data(normed, groups),
        "similarity": None if positions is None else _similarity(positions, ids),
    }
    shown_text = _visible(text if not text_pair else f"{text} / {text_pair}", KEPT)
    counted = f"{len(tokens)} token{'s' * (len(tokens) != 1)} of {layer.family.model_type}"
    shape = (1, *output.shape)
    html = _filled(
        title=escape(f"{' '.join(shown_text[:60].split())} - minibert"),
        text=escape(shown_text),
        about=escape(f"{counted} → {shape}, {output.dtype}: {by_hand(layer.steps, ids, mask)[1]}"),
        layer=escape(repr(layer)),
        tokens="\n".join(_choice(i, *pair) for i, pair in enumerate(zip(tokens, input_ids[0].tolist(), strict=True))),
        norm="" if normed is None else "\n".join(_norm_lines(normed, tokens)),
        positions=_positions_words(layer, positions is not None),
        formulas="\n".join(_formulas(layer)),
        data=as_json(data),
        **_second_part(encoder, trace),
    )
    check_size(len(html.encode()), layer, seq, pairs)
    return html


def _second_part(encoder: Encoder | None, trace: Mapping[str, Array]) -> dict[str, str]:
    if encoder is None:
        return {"style": "", "blocks": "", "script": ""}
    from .page_blocks import part

    return part(encoder, trace)


def save(html: str, path: Path) -> None:
    """Write a page; the file appears whole or not at all."""
    write_output(path, html.encode("utf-8"))


def _filled(**parts: str) -> str:
    """Fill the template in one pass, so that no filled-in text is taken for a placeholder."""
    frame = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], frame)


# -- what is shown -----------------------------------------------------------------------------------------------


def stages(layer: EmbeddingLayer, trace: Mapping[str, Array], ids: Mapping[str, Array], mask: Array) -> Iterator[Stage]:
    """The stages of one text in the order of computing, with the sums."""
    addends = 0
    for i, (step, _) in enumerate(layer.steps):
        if step.key not in trace:  # a lookup that no ids were passed for
            continue
        if isinstance(step, Lookup):
            taken = ids[step.ids][0] + step.extra
            yield Stage(name_of(step), "+" * bool(addends), trace[step.key][0], step, taken)
            addends += 1
            continue
        if addends > 1:
            yield Stage("sum", "=", by_hand(layer.steps[:i], ids, mask)[0][0])
        yield Stage(name_of(step), "→", trace[step.key][0], step)
        addends = 1
    if addends > 1:
        yield Stage("sum", "=", trace["sum"][0])


def by_width(shown: Sequence[Stage]) -> list[list[Stage]]:
    """Split the stages where a projection changes the width: only rows of equal width fit one axis."""
    groups: list[list[Stage]] = []
    for stage in shown:
        if not groups or groups[-1][-1].rows.shape[-1] != stage.rows.shape[-1]:
            groups.append([])
        groups[-1].append(stage)
    return groups


def _group(group: Sequence[Stage]) -> dict[str, Any]:
    """Pack stages of one width. Those up to a sum have one colour scale, so that their sizes can be compared."""
    bands, scale = [], _reach([stage.rows for stage in group if stage.sign != "→"])
    for stage in group:
        rows, index = stage.rows, np.arange(len(stage.rows))
        if stage.taken is not None:  # the row of a word or type that occurs twice is packed once
            _, first, index = np.unique(stage.taken, return_index=True, return_inverse=True)
            rows = rows[first]
        bands.append(
            {
                "name": stage.name,
                "sign": stage.sign,
                "tells": stage.tells,
                "taken": None if stage.taken is None else stage.taken.tolist(),
                "reach": _reach([stage.rows]) if stage.sign == "→" else scale,
                "index": index.tolist(),
                "rows": packed(rows),
            }
        )
    return {"dim": group[0].rows.shape[-1], "stages": bands}


def _reach(rows: Sequence[Array]) -> float:
    """The largest size on the colour scale: 99 % of the numbers are smaller."""
    numbers = np.abs(np.concatenate([np.ravel(row) for row in rows])) if rows else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    return float(np.percentile(finite, 99)) or 1.0 if finite.size else 1.0


def _normed(layer: EmbeddingLayer, shown: Sequence[Stage]) -> Normed | None:
    place = next((i for i, stage in enumerate(shown) if isinstance(stage.step, Norm)), None)
    if place is None:
        return None
    module = next(module for step, module in layer.steps if isinstance(step, Norm))
    before, after = (shown[i].rows.astype(np.float64) for i in (place - 1, place))
    ones = np.ones(before.shape[-1])
    return Normed(module, before, equations.layer_norm(before, ones, eps=module.eps), after)


def _norm_data(normed: Normed, groups: Sequence[Sequence[Stage]]) -> dict[str, Any]:
    places = ((g, s) for g, group in enumerate(groups) for s, stage in enumerate(group) if isinstance(stage.step, Norm))
    group, stage = next(places)
    bias = normed.module.bias
    return {
        "group": group,
        "stage": stage,
        "eps": normed.module.eps,
        "mean": packed(normed.before.mean(axis=-1)),
        "variance": packed(normed.before.var(axis=-1)),
        "weight": packed(normed.module.weight),
        "bias": None if bias is None else packed(bias),
    }


def _similarity(positions: Stage, ids: Mapping[str, Array]) -> dict[str, Any]:
    cosines = cosine_similarity(positions.rows).astype(np.float32)
    return {"positions": ids["position_ids"][0].tolist(), "cosines": packed(cosines)}


# -- as HTML -----------------------------------------------------------------------------------------------------


def _visible(text: str | None, kept: str = "") -> str:
    """Escape what a browser would hide or interpret: control characters and direction marks."""
    if text is None:
        return "?"
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)


def _choice(place: int, token: str, token_id: int) -> str:
    checked = " checked" * (place == 0)
    return (
        f'<label><input type="radio" name="token" value="{place}"{checked}>'
        f'<span><bdi dir="ltr">{escape(token)}</bdi> '
        f'<small><span class="unseen">, id </span>{token_id}</small></span></label>'
    )


def _norm_lines(normed: Normed, tokens: Sequence[str]) -> Iterator[str]:
    """Mean and variance of each token's row at three stages: one table line for each token."""
    for i, token in enumerate(tokens):
        rows = normed.before[i], normed.standard[i], normed.after[i]
        # a mean of -0.00000001 is none
        numbers = [f"{number:.4f}".replace("-0.0000", "0.0000") for row in rows for number in (row.mean(), row.var())]
        cells = "".join(f"<td>{number}</td>" for number in numbers)
        yield f'<tr data-token="{i}"><th scope="row"><bdi dir="ltr">{escape(token)}</bdi></th>{cells}</tr>'


def _positions_words(layer: EmbeddingLayer, has_table: bool) -> str:
    if has_table:
        return (
            "The cosine of the angle between the position rows of every two tokens. 1 is the same direction. The words "
            "do not matter here."
        )
    where = "they act inside attention" if layer.family.attention is not None else "it has none"
    return escape(f"{layer.family.model_type} adds no positions in its input layer: {where}.")


def _formulas(layer: EmbeddingLayer) -> Iterator[str]:
    """Give the formulas that this layer uses, in the order of `equations`, in the words of their docstrings."""
    used: set[Callable[..., Any]] = set()
    for step, module in layer.steps:
        if isinstance(step, Positions):
            used.add(COUNTS[step.rule])
            used |= {equations.sinusoidal_positions} if step.generate else set()
        if (function := function_of(step)) is not None:
            used.add(function)
        if getattr(module, "scale", 1.0) != 1.0:
            used.add(equations.scale)
    full_layer = {"bert": equations.bert_input, "gpt2": equations.gpt2_input}.get(layer.family.model_type)
    for name, function in vars(equations).items():
        if callable(function) and (function in used or function is full_layer):
            yield f"<li><h3><code>{name}</code></h3>{docstring(function)}</li>"
