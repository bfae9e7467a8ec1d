"""The input layer, blocks and head at work on one text, as one HTML page: what `minibert explain --html` writes.

The page is one string that needs nothing else: no network, no framework, no font. `templates/page.html` is its frame,
with the style; `page_base.js` and `page_rows.js` are its script. The numbers are the trace's, to the bit: the
script only draws them. A page has 4 bytes for each number, times 4/3 for base64: about 16 kB for a token of a layer
that is 768 wide. `page_parts` has its parts, `prediction` the head's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import input_layer as equations
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.families.parts.plan import GIVEN, POSITIONS, Plan, given, layer_plan
from minibert.families.parts.steps import Positions
from minibert.models.input_layer import EmbeddingLayer

from . import page_parts as parts
from .explain import expression, first_of_text, lookup_ids
from .prediction import prediction_numbers, prediction_part, shown_head
from .text import counted, visible

if TYPE_CHECKING:
    from minibert.families.parts.heads import BoundHead
    from minibert.models.encoder import Encoder

# not printable, but allowed in a text: the last two join letters and emoji
KEPT = "\n\t\u200c\u200d"
# the rule of the position step -> the formula that counts positions
COUNTS: dict[str, Callable[..., Array]] = {
    "count": equations.default_position_ids,
    "padding": equations.padding_position_ids,
    "mask": equations.mask_position_ids,
}


def page(
    model: EmbeddingLayer | Encoder,
    text: str,
    text_pair: str | None = None,
    truncation: bool = False,
    name: str | None = None,
    beside: str | None = None,
) -> str:
    """Write the page of an input layer; for a whole model, the blocks are a second part, and the head is a third.

    `name` is the model's name on the page; default: the family's. `beside` is another text, whose tokens are compared
    with the tokens of the first after each block. Raises as `EmbeddingLayer.tokenize` and a call of the layer;
    ValueError if the page would have more than 10 MB, and for a second text if the model has no blocks.
    """
    layer, encoder = (model, None) if isinstance(model, EmbeddingLayer) else (model.embeddings, model)
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation and layer.max_length is not None)
    input_ids = batch["input_ids"]
    seq = input_ids.shape[1]
    encoder = encoder if seq else None  # without tokens nothing enters a block
    head, no_head = (None, "") if encoder is None else shown_head(encoder)
    check_size(encoder or layer, seq)
    first = first_choice(layer, input_ids[0], encoder is not None and encoder.stack.causal)
    other = None
    if beside is not None:
        if encoder is None:
            raise ValueError("two texts are compared by their tokens' vectors after blocks, and here are none; give a "
                             "whole model and a text with tokens")  # fmt: skip
        beside_batch: dict[str, Any] = layer.tokenize(beside, truncation=truncation and layer.max_length is not None)
        tokens, others = shown_tokens(layer, input_ids), shown_tokens(layer, beside_batch["input_ids"])
        if not others:
            raise ValueError("the text beside has no tokens, so there is nothing to compare; give another one")
        check_size(encoder, seq, len(others))
        words = [i for i, token in enumerate(input_ids[0].tolist()) if not layer.tokenizer.is_special(token)]
        shared = parts.common_token(tokens, others, words)
        first = first if shared is None else shared
        other = Beside(beside, others, encoder.trace(**beside_batch))
    trace = layer.trace(**batch) if encoder is None else encoder.trace(**batch, head=head and head.name)
    run = Run(layer, encoder, head, batch, trace, first, other)
    html = render_page(run, visible(text if not text_pair else f"{text} / {text_pair}", KEPT), name, no_head)
    check_size(encoder or layer, seq, size=len(html.encode()))
    return html


def check_size(model: EmbeddingLayer | Encoder, *counts: int, size: float | None = None) -> None:
    """Refuse a page of more than `LARGEST` bytes. Raises ValueError.

    counts: the number of tokens of each text; size: the bytes of the finished page. Without it the size is estimated by
    the numbers of each pair of tokens: a similarity, and a weight for each head of each block.
    """
    pairs, itemsize = 1, model.dtype.itemsize
    if not isinstance(model, EmbeddingLayer):
        pairs += len(model.stack.blocks) * model.stack.heads
    size = pairs * itemsize * parts.BYTES * sum(count * count for count in counts) if size is None else size
    if size > parts.LARGEST:
        wrong = f"the page of {' and '.join(map(str, counts))} tokens would have {size / 1e6:.1f} MB"
        raise ValueError(f"{wrong}, expected at most {parts.LARGEST / 1e6:.0f} MB; give less text")


def shown_tokens(layer: EmbeddingLayer, input_ids: Array) -> list[str]:
    """Return the tokens of one text (1, seq) as the page writes them."""
    return [visible(token) for token in layer.tokenizer.tokens(input_ids[0])]


def first_choice(layer: EmbeddingLayer, input_ids: Array, causal: bool) -> int:
    """Choose the token to open the page at: a mask, else the text's first token after the special tokens.

    For a causal model it is the last token, since the first one sees only itself.
    """
    mask = layer.tokenizer.mask
    masks = [] if mask is None else np.flatnonzero(input_ids == layer.tokenizer.id_of(mask)).tolist()
    if masks:
        return int(masks[0])
    return max(0, len(input_ids) - 1) if causal else first_of_text(layer, input_ids) or 0


# -- one run, and what a page shows of it ------------------------------------------------------------------------


class Beside(NamedTuple):
    """A text compared with the page's text; without tokens on a live page that has no second text."""

    text: str
    tokens: list[str]
    trace: Mapping[str, Array]


class Run(NamedTuple):
    """One text's run through a model, from which a page is made.

    first    the token that is chosen when the page opens
    adds_up  False if a change leaves out norms: then the parts of the model do not add up to its logits
    """

    layer: EmbeddingLayer
    encoder: Encoder | None
    head: BoundHead | None
    batch: Mapping[str, Any]
    trace: dict[str, Array]
    first: int = 0
    beside: Beside | None = None
    adds_up: bool = True


class Contents(NamedTuple):
    """The parts of a page that depend on the run. numbers: id of the script element -> its data."""

    numbers: dict[str, Any]
    tokens: str
    norm: str
    about: str


def contents(run: Run) -> Contents:
    """Compute the numbers and tables that a page shows of a run."""
    layer, encoder, input_ids = run.layer, run.encoder, run.batch["input_ids"]
    tokens = shown_tokens(layer, input_ids)
    plan, values = layer_plan(layer.steps, layer.config), dict[str, Any]({GIVEN: given(run.batch)})
    ids = lookup_ids(plan, values)
    bands = list(parts.stages(run.trace, plan, values))
    # a projection changes the width, and only rows of equal width fit one axis
    groups, output = [list(group) for _, group in groupby(bands, lambda stage: stage.rows.shape[-1])], bands[-1].rows
    norm, norm_lines = parts.norm_of(groups, tokens)
    positions = next((stage for stage in bands if stage.ids == POSITIONS), None)
    numbers: dict[str, Any] = {
        "data": {
            "float": output.dtype.str[1:],
            "tokens": tokens,
            "groups": [parts.packed_group(group) for group in groups],
            "norm": norm,
            "similarity": None if positions is None else {
                "positions": ids[POSITIONS][0].tolist(),
                "cosines": parts.packed_float32(cosine_similarity(positions.rows)),
            },
        }
    }  # fmt: skip
    if encoder is not None:
        numbers["blockdata"] = parts.block_numbers(encoder, run.trace)
        if run.head is not None:
            numbers["predictdata"] = prediction_numbers(encoder, run.head, input_ids, run.trace, run.adds_up)
        if (other := run.beside) is not None:
            numbers["besidedata"] = None
            if other.tokens:
                numbers["besidedata"] = parts.beside_numbers(encoder, run.trace, other.tokens, other.trace)
    pairs = zip(tokens, input_ids[0].tolist(), strict=True)
    choices = "\n".join(_choice(i, *pair, i == run.first) for i, pair in enumerate(pairs))
    about = f"{counted(len(tokens), 'token')} of {layer.family.model_type} → {(1, *output.shape)}, {output.dtype}"
    return Contents(numbers, choices, norm_lines, f"{about}: {expression(list(plan)[-1], plan, values)}")


def render_page(
    run: Run, shown_text: str, name: str | None, no_head: str = "", live: Mapping[str, str] | None = None
) -> str:
    """Fill in the page's template.

    no_head: why there is no prediction, as HTML; live: the controls of a live page by their place in the template.
    """
    layer, encoder, shown = run.layer, run.encoder, contents(run)
    plan = layer_plan(layer.steps, layer.config)
    family, formulas = layer.family.model_type, _formulas(layer, plan)
    data = {id_: parts.as_json(numbers) for id_, numbers in shown.numbers.items()}
    more = [] if encoder is None else [parts.blocks_part(encoder, data["blockdata"], formulas)]
    if encoder is not None and run.head is not None:
        more.append(prediction_part(encoder, run.head, data["predictdata"]))
    if run.beside is not None:
        more.append(parts.beside_part(run.beside.text, data["besidedata"]))
    places = dict.fromkeys(("blocks", "beside", "style", "asked", "live", "live_script", "connect"), "")
    places |= {"prediction": no_head, **(live or {})}
    for part in more:
        places |= part
    places["script"] = "\n".join(part["script"] for part in more)
    return parts.rendered(
        "page.html",
        title=escape(f"{' '.join(shown_text[:60].split())} - {name or 'minibert'}"),
        model=escape(f"{name} ({family})" if name and name != family else family),
        text=escape(shown_text),
        about=escape(shown.about),
        layer=escape(repr(layer)),
        tokens=shown.tokens,
        norm=shown.norm,
        unnormed="" if shown.norm else " hidden",
        positions=_positions_text(layer),
        formulas=parts.listed(formulas, equations),
        data=data["data"],
        base=parts.rendered("page_base.js"),
        rows=parts.rendered("page_rows.js"),
        **places,
    )


def _choice(position: int, token: str, token_id: int, chosen: bool) -> str:
    checked = " checked" * chosen
    return (
        f'<label><input type="radio" name="token" value="{position}"{checked}>'
        f'<span><bdi dir="ltr">{escape(token)}</bdi> '
        f'<small><span class="unseen">, id </span>{token_id}</small></span></label>'
    )


def _positions_text(layer: EmbeddingLayer) -> str:
    if any(isinstance(step, Positions) for step, _ in layer.steps):
        about = "The cosine of the angle between the position rows of every two tokens. 1 is the same direction."
        return f"{about} The words do not matter here."
    where = "they act inside attention" if layer.family.attention is not None else "it has none"
    return escape(f"{layer.family.model_type} adds no positions in its input layer: {where}.")


def _formulas(layer: EmbeddingLayer, plan: Plan) -> set[Any]:
    """List the functions of `equations` that this layer uses, and the function of the whole layer if there is one."""
    used: set[Any] = {step.function for step in plan.values()}
    used.add({"bert": equations.bert_input, "gpt2": equations.gpt2_input}.get(layer.family.model_type))
    for step, module in layer.steps:
        if isinstance(step, Positions):
            used |= {COUNTS[step.rule], equations.sinusoidal_positions if step.generate else None}
        if getattr(module, "scale", 1.0) != 1.0:
            used.add(equations.scale)
    return used
