"""A text's way through the layer as one HTML page: what `minibert explain --html` writes.

The page is one string that needs nothing else: no network, no framework, no font. `page.html` is its template, with the
style and the script; this file writes its tables and packs its numbers. They are the numbers of the trace, to the bit:
the script only draws them. For a whole model `page_blocks` adds a second part. A page has 4 bytes for each number,
times 4/3 for base64: about 16 kB for a token of a layer that is 768 wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import input_layer as equations
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.families.parts.layer_plan import GIVEN, given, layer_plan
from minibert.families.parts.plan import Plan, value
from minibert.families.parts.steps import Lookup, Norm, Positions, Project, Step
from minibert.models.input_layer import EmbeddingLayer
from minibert.show.text.explain import by_hand, first_of_text, looked_up, name_of
from minibert.show.text.text import counted, visible

from . import page_beside, page_blocks, page_prediction
from .page_parts import BYTES, as_json, check_size, filled, listed, packed

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


def page(
    model: EmbeddingLayer | Encoder,
    text: str,
    text_pair: str | None = None,
    truncation: bool = False,
    name: str | None = None,
    beside: str | None = None,
) -> str:
    """Give the page: of an input layer, or of a whole model, whose blocks make a second part, and its head a third.

    `name` is what the page calls the model, the family's where it is None. `beside` is another text, whose tokens are
    compared with those of the first after each block. Raises as `EmbeddingLayer.tokenize` and a call of the layer;
    ValueError if the page would have more than 10 MB, and for a text beside where there are no blocks.
    """
    layer, encoder = (model, None) if isinstance(model, EmbeddingLayer) else (model.embeddings, model)
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation and layer.max_length is not None)
    input_ids = batch["input_ids"]
    tokens = [visible(token) for token in layer.tokenizer.tokens(input_ids[0])]
    # numbers for each pair of tokens: a similarity, and one of each head of each block
    seq, pairs = len(tokens), 1 if encoder is None else 1 + len(encoder.stack.blocks) * encoder.stack.heads
    encoder = encoder if seq else None  # without tokens nothing enters a block
    head, why_none = (None, "") if encoder is None else page_prediction.shown_head(encoder)
    more = 0.0 if encoder is None else page_blocks.bytes_a_token(encoder) + page_prediction.bytes_a_token(encoder, head)
    # before anything large is computed
    size = pairs * seq * seq * layer.dtype.itemsize * BYTES + more * seq
    check_size(size, layer, seq, pairs, more)
    first = first_choice(layer, input_ids[0], encoder is not None and encoder.stack.causal)
    other, others = None, list[str]()
    if beside is not None:
        if encoder is None:
            raise ValueError("two texts are compared by what blocks make of their tokens, and here are none; give a "
                             "whole model and a text with tokens")  # fmt: skip
        other = layer.tokenize(beside, truncation=truncation and layer.max_length is not None)
        others = [visible(token) for token in layer.tokenizer.tokens(other["input_ids"][0])]
        page_beside.check_both(size, encoder, seq, len(others))
        words = [i for i, token in enumerate(input_ids[0].tolist()) if not layer.tokenizer.is_special(token)]
        shared = page_beside.common_token(tokens, others, words)
        first = first if shared is None else shared
    trace = layer.trace(**batch) if encoder is None else encoder.trace(**batch, head=head and head.name)
    plan, values = layer_plan(layer.steps, layer.config), dict[str, Any]({GIVEN: given(batch)})
    ids = looked_up(plan, values)
    shown = list(stages(layer, trace, ids, plan, values))
    # a projection changes the width, and only rows of equal width fit one axis
    groups, output = [list(group) for _, group in groupby(shown, lambda stage: stage.rows.shape[-1])], shown[-1].rows
    norm, norm_lines = _norm(layer, groups, tokens)
    formulas = _formulas(layer, plan)
    positions = next((stage for stage in shown if isinstance(stage.step, Positions)), None)
    data = {
        "float": output.dtype.str[1:],
        "tokens": tokens,
        "groups": [_group(group) for group in groups],
        "norm": norm,
        "similarity": None if positions is None else {
            "positions": ids["position_ids"][0].tolist(),
            "cosines": packed(cosine_similarity(positions.rows).astype(np.float32)),
        },
    }  # fmt: skip
    shown_text = visible(text if not text_pair else f"{text} / {text_pair}", KEPT)
    family, shape = layer.family.model_type, (1, *output.shape)
    about, named = f"{counted(seq, 'token')} of {family}", f"{name} ({family})" if name and name != family else family
    behind = {"blocks": "", "prediction": why_none, "beside": ""}
    parts = [] if encoder is None else [page_blocks.part(encoder, trace, formulas)]
    if encoder is not None and head is not None:
        parts.append(page_prediction.part(encoder, head, input_ids, trace))
    if encoder is not None and other is not None:
        parts.append(page_beside.part(encoder, trace, str(beside), others, encoder.trace(**other)))
    for each in parts:
        behind |= each
    behind["script"] = "\n".join(each["script"] for each in parts)
    html = filled(
        "page.html",
        title=escape(f"{' '.join(shown_text[:60].split())} - {name or 'minibert'}"),
        model=escape(named),
        text=escape(shown_text),
        about=escape(f"{about} → {shape}, {output.dtype}: {by_hand(plan, batch)[1]}"),
        layer=escape(repr(layer)),
        tokens="\n".join(
            _choice(i, *pair, i == first) for i, pair in enumerate(zip(tokens, input_ids[0].tolist(), strict=True))
        ),
        norm=norm_lines,
        unnormed="" if norm_lines else " hidden",
        positions=_positions_words(layer, positions is not None),
        formulas=listed(formulas, equations),
        data=as_json(data),
        **behind,
    )
    check_size(len(html.encode()), layer, seq, pairs, more)
    return html


# -- what is shown -----------------------------------------------------------------------------------------------


def stages(
    layer: EmbeddingLayer, trace: Mapping[str, Array], ids: Mapping[str, Array], plan: Plan, values: dict[str, Any]
) -> Iterator[Stage]:
    """The stages of one text in the order of computing, with the sums."""
    addends = 0
    for step, _ in layer.steps:
        if step.key not in trace:  # a lookup that no ids were passed for
            continue
        if isinstance(step, Lookup):
            taken = ids[step.ids][0] + step.extra
            yield Stage(name_of(step), "+" * bool(addends), trace[step.key][0], step, taken)
            addends += 1
            continue
        if addends > 1:
            yield Stage("sum", "=", value(plan[step.key].of[0], plan, values)[0])
        yield Stage(name_of(step), "→", trace[step.key][0], step)
        addends = 1
    if addends > 1:
        yield Stage("sum", "=", trace["sum"][0])


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


def _norm(
    layer: EmbeddingLayer, groups: Sequence[Sequence[Stage]], tokens: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """LayerNorm in float64: numbers for the script, and mean and variance of each token's row in lines of a table."""
    places = ((g, s) for g, group in enumerate(groups) for s, stage in enumerate(group) if isinstance(stage.step, Norm))
    group, stage = next(places, (None, None))
    if group is None or stage is None:
        return None, ""
    module = next(module for step, module in layer.steps if isinstance(step, Norm))
    before, after = (groups[group][i].rows.astype(np.float64) for i in (stage - 1, stage))
    standard = equations.layer_norm(before, np.ones(before.shape[-1]), eps=module.eps)
    lines = []
    for i, token in enumerate(tokens):
        moments = [number for x in (before, standard, after) for number in (x[i].mean(), x[i].var())]
        # no minus before a mean that rounds to 0
        cells = "".join(f"<td>{number:.4f}</td>".replace("-0.0000", "0.0000") for number in moments)
        lines.append(f'<tr data-token="{i}"><th scope="row"><bdi dir="ltr">{escape(token)}</bdi></th>{cells}</tr>')
    data = {
        "group": group,
        "stage": stage,
        "eps": module.eps,
        "mean": packed(before.mean(axis=-1)),
        "variance": packed(before.var(axis=-1)),
        "weight": packed(module.weight),
        "bias": None if module.bias is None else packed(module.bias),
    }
    return data, "\n".join(lines)


# -- as HTML -----------------------------------------------------------------------------------------------------


def first_choice(layer: EmbeddingLayer, input_ids: Array, causal: bool) -> int:
    """The token that is chosen when the page opens: a mask, or the first of the text, behind the special ones.

    In a causal model it is the last token, since the first one sees only itself.
    """
    mask = layer.tokenizer.mask
    masks = [] if mask is None else np.flatnonzero(input_ids == layer.tokenizer.id_of(mask)).tolist()
    if masks:
        return int(masks[0])
    return max(0, len(input_ids) - 1) if causal else first_of_text(layer, input_ids) or 0


def _choice(position: int, token: str, token_id: int, chosen: bool) -> str:
    checked = " checked" * chosen
    return (
        f'<label><input type="radio" name="token" value="{position}"{checked}>'
        f'<span><bdi dir="ltr">{escape(token)}</bdi> '
        f'<small><span class="unseen">, id </span>{token_id}</small></span></label>'
    )


def _positions_words(layer: EmbeddingLayer, has_table: bool) -> str:
    if has_table:
        return (
            "The cosine of the angle between the position rows of every two tokens. 1 is the same direction. The words "
            "do not matter here."
        )
    where = "they act inside attention" if layer.family.attention is not None else "it has none"
    return escape(f"{layer.family.model_type} adds no positions in its input layer: {where}.")


def _formulas(layer: EmbeddingLayer, plan: Plan) -> set[Any]:
    """The functions that this layer uses, and the whole layer in one function where there is one."""
    used: set[Any] = {step.function for step in plan.values()}
    used.add({"bert": equations.bert_input, "gpt2": equations.gpt2_input}.get(layer.family.model_type))
    for step, module in layer.steps:
        if isinstance(step, Positions):
            used |= {COUNTS[step.rule], equations.sinusoidal_positions if step.generate else None}
        if getattr(module, "scale", 1.0) != 1.0:
            used.add(equations.scale)
    return used
