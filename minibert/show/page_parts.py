"""The parts of the page of `minibert explain --html`: templates and packed numbers, the input layer, blocks, two texts.

The first part shows the rows of the input layer as bands of colours, and the norm's steps. The second part shows
attention and the vectors' changes, block by block. The last part compares two texts (`--beside`). The attention weights
are those of the trace, to the bit: 4 bytes for each head and each pair of tokens, times 4/3 for base64. So the page
grows with the square of the number of tokens, and `page.check_size` refuses a text that is too long.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import activations, attention_positions, blocks, gated_blocks, input_layer, rotary
from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.similarity import cosine_similarity
from minibert.errors import MinibertError
from minibert.families.parts.plan import Plan, Step, Trace, value
from minibert.models.sentences.token_pairs import pairs_of_rows

from .explain import name_of
from .text import visible

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.run.blocks import Stack

LARGEST = 10_000_000  # bytes of a page
BYTES = 4 / 3  # base64 characters for one byte
NEAREST = 5  # most similar tokens that are listed


# -- templates and packed numbers --------------------------------------------------------------------------------


def packed(numbers: Array) -> str:
    """Pack numbers as little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()).decode()


def packed_float32(numbers: Array) -> str:
    """Pack numbers as float32."""
    return packed(numbers.astype(np.float32))


def as_json(data: Any) -> str:
    """Write data for a script element. "</" or "<!--" would end or change the script: no "<" is left."""
    return json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")


def rendered(template: str, **parts: str) -> str:
    """Fill in a template in one pass, so that a placeholder inside a part is not filled."""
    frame = Path(__file__).with_name("templates").joinpath(template).read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], frame)


def rendered_part(name: str, **parts: str) -> dict[str, str]:
    """Render a part of the page: its elements, under its name, and its script, from page_NAME.html and page_NAME.js."""
    script = f"<script>\n{rendered(f'page_{name}.js')}</script>"
    return {name: rendered(f"page_{name}.html", **parts), "script": script}


def listed(used: Container[object], *files: ModuleType) -> str:
    """List the used functions of some files, in the files' order, as HTML items."""
    defined = (f for file in files for f in vars(file).values() if getattr(f, "__module__", None) == file.__name__)
    functions = (f for f in defined if inspect.isfunction(f) and f in used)
    return "\n".join(f"<li><h3><code>{f.__name__}</code></h3>{_docstring(f)}</li>" for f in functions)


def _docstring(function: Callable[..., Any]) -> str:
    """Write the first sentence of a docstring and its indented formulas as HTML."""
    first, *paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    formulas = [inspect.cleandoc("\n" + paragraph) for paragraph in paragraphs if paragraph.startswith("    ")]
    sentence = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(first.split()), quote=False))
    return f"<p>{sentence}</p>" + "".join(f"<pre>{escape(formula, quote=False)}</pre>" for formula in formulas)


# -- the input layer's rows --------------------------------------------------------------------------------------

# ids of a row, or kind of a step -> its meaning in a few words
MEANING = {
    "input_ids": "which token it is",
    "token_type_ids": "first or second text",
    "position_ids": "where it stands",
    "norm": "mean 0, variance 1, then weight and bias",
    "dense": "to another width",
}


class Stage(NamedTuple):
    """One band of colours, rows (seq, dim), and its sign: "+" added, "=" a sum, "→" computed from the rows above.

    step        the step of the plan that computed the rows; None for a sum
    table_rows  the number of each token's row in the step's table, found by the token's `ids`; None without a table
    """

    name: str
    sign: str
    rows: Array
    step: Step | None = None
    table_rows: Array | None = None
    ids: str = ""

    @property
    def meaning(self) -> str:
        """The meaning of these rows, for the page."""
        return MEANING.get(self.ids or (self.step.kind if self.step else ""), "")


def stages(trace: Trace, plan: Plan, values: dict[str, Any]) -> Iterator[Stage]:
    """Yield the stages of one text in the order of computation, with the sums."""
    addends = 0
    for key, step in plan.items():
        if step.kind == "add":
            if addends > 1:
                yield Stage("sum", "=", value(key, plan, values)[0])
        elif key not in trace or step.kind == "positions":  # a lookup without ids, or the ids of positions
            continue
        elif step.kind == "rows":
            lookup, ids = plan[step.of[0]].part, value(step.of[0], plan, values)
            yield Stage(name_of(key), "+" * bool(addends), trace[key][0], step, ids[0] + lookup.extra, lookup.ids)
            addends += 1
        else:
            yield Stage(name_of(key), "→", trace[key][0], step)
            addends = 1


def packed_group(group: Sequence[Stage]) -> dict[str, Any]:
    """Pack stages of one width. Stages up to a sum share one colour scale, so that their sizes can be compared."""
    bands, scale = [], _reach([stage.rows for stage in group if stage.sign != "→"])
    for stage in group:
        rows, index = stage.rows, np.arange(len(stage.rows))
        if stage.table_rows is not None:  # the row of a word or type that occurs twice is packed once
            _, first, index = np.unique(stage.table_rows, return_index=True, return_inverse=True)
            rows = rows[first]
        bands.append(
            {
                "name": stage.name,
                "sign": stage.sign,
                "tells": stage.meaning,
                "taken": None if stage.table_rows is None else stage.table_rows.tolist(),
                "reach": _reach([stage.rows]) if stage.sign == "→" else scale,
                "index": index.tolist(),
                "rows": packed(rows),
            }
        )
    return {"dim": group[0].rows.shape[-1], "stages": bands}


def _reach(rows: Sequence[Array]) -> float:
    """Compute the end of the colour scale: 99 % of the numbers are smaller."""
    numbers = np.abs(np.concatenate([np.ravel(row) for row in rows])) if rows else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    return float(np.percentile(finite, 99)) or 1.0 if finite.size else 1.0


def norm_of(groups: Sequence[Sequence[Stage]], tokens: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Compute LayerNorm in float64: numbers for the script, and a table of each token's mean and variance."""
    steps = ((g, s, stage.step) for g, group in enumerate(groups) for s, stage in enumerate(group))
    norm = next(((g, s, step.part) for g, s, step in steps if step and step.kind == "norm"), None)
    if norm is None:
        return None, ""
    g, s, module = norm
    before, after = (groups[g][i].rows.astype(np.float64) for i in (s - 1, s))
    standard = layer_norm(before, np.ones(before.shape[-1]), eps=module.eps)
    lines = []
    for i, token in enumerate(tokens):
        moments = [number for x in (before, standard, after) for number in (x[i].mean(), x[i].var())]
        # no minus before a mean that rounds to 0
        cells = "".join(f"<td>{number:.4f}</td>".replace("-0.0000", "0.0000") for number in moments)
        lines.append(f'<tr data-token="{i}"><th scope="row"><bdi dir="ltr">{escape(token)}</bdi></th>{cells}</tr>')
    data = {
        "group": g,
        "stage": s,
        "eps": module.eps,
        "mean": packed(before.mean(axis=-1)),
        "variance": packed(before.var(axis=-1)),
        "weight": packed(module.weight),
        "bias": None if module.bias is None else packed(module.bias),
    }
    return data, "\n".join(lines)


# -- attention and the vectors' changes ----------------------------------------------------------------------------


def block_numbers(encoder: Encoder, trace: Trace) -> dict[str, Any]:
    """Compute the numbers that the script draws for one text with tokens."""
    stack = encoder.stack
    return {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "scores": scores(encoder, trace),
        "moves": moves(encoder, trace),
    }


def blocks_part(encoder: Encoder, data: str, listed_before: set[Any]) -> dict[str, str]:
    """Render this part of the page: its elements ("blocks") and its script.

    data: its numbers, as JSON; listed_before: the functions that the first part lists.
    """
    stack = encoder.stack
    feed = stack.blocks[-1].parts[1]
    norm = type(stack.blocks[-1].modules[feed.pre_norm or feed.post_norm]).__name__
    order = (
        f"Both add to the vector. {norm} is applied to what enters them, so the vector itself can grow."
        if feed.pre_norm
        else f"{norm} follows each sum and sets the vector's size anew, so what is added does not pile up."
    )
    used = _functions(stack) - listed_before
    positions = rotary, attention_positions
    return rendered_part(
        "blocks",
        order=order,
        causal=" Here no token sees those after it." * stack.causal,
        formulas=listed(used, input_layer, *positions, activations, blocks, gated_blocks),
        data=data,
    )


def _functions(stack: Stack) -> set[Any]:
    """List the functions of `equations` that compute the blocks: each step, the attention and the feed-forward."""
    used = {step.function for i, block in enumerate(stack.blocks) for step in block.plan(i, stack).values()} - {None}
    for block in stack.blocks:
        rotated, gated = block.attention.rotated, block.feed_forward.gate
        used |= {blocks.attention, gated_blocks.rotary_attention if rotated else blocks.self_attention}
        used.add(gated_blocks.gated_feed_forward if gated else blocks.feed_forward)
    return used


def scores(encoder: Encoder, trace: Trace) -> dict[str, Any]:
    """Compute the numbers from which the page's script derives scores and attention weights.

        weight[i, j] = exp(score[i, j]) / sum over k of exp(score[i, k])
        score[i, j] = log(weight[i, j]) + logs[i]

    score[i, j] is `scale * q . k + bias`. A page holds one number per query of a head, `logs`, the logarithm of the
    sum, and not one per pair. `bias` is each head's bias by distance, key - query, starting at -(seq - 1): once for all
    blocks, or once per block if they differ; None without a bias. `terms` names the terms of a score that depend on
    the text.
    """
    stack, attentions = encoder.stack, [block.attention for block in encoder.stack.blocks]
    rows = []
    for attention in attentions:
        # a masked score has no weight, and is not part of the sum
        weights, all_scores = (trace[name][0] for name in (attention.probabilities, attention.scores))
        unmasked = np.where(weights > 0, all_scores.astype(np.float64), -np.inf)
        most = np.maximum(unmasked.max(axis=-1, keepdims=True), -np.finfo(np.float64).max)
        with np.errstate(divide="ignore"):  # a head that is switched off has no sum, and no weight to explain
            rows.append(np.log(np.exp(unmasked - most).sum(axis=-1)) + most[..., 0])
    seq = rows[0].shape[-1]
    terms = [[term for term in attention.terms if term.alone] for attention in attentions]
    distinct = terms if len({term.scheme for block_terms in terms for term in block_terms}) > 1 else terms[:1]
    bias = (
        np.stack([np.sum([term.shared(seq) for term in block_terms], axis=0) for block_terms in distinct])
        if terms[0]
        else None
    )
    return {
        "logs": packed(np.stack(rows)),
        "scales": [attention.scale for attention in attentions],
        "windows": [attention.window for attention in attentions],
        "rotated": [attention.rotated for attention in attentions],
        "normed": [bool(any(attention.norms)) for attention in attentions],
        "widths": [attention.head_dim for attention in attentions],
        "key_heads": [attention.key_heads for attention in attentions],
        "causal": stack.causal,
        "terms": [term.name for term in attentions[0].terms if not term.alone],
        "bias": None if bias is None else packed(np.concatenate([bias[:, :, :0:-1, 0], bias[:, :, 0]], axis=2)),
    }


def moves(encoder: Encoder, trace: Trace) -> list[list[dict[str, Any]]]:
    """Measure how each token's vector changes: one entry for the input layer, then one for each block.

    Sizes are Euclidean lengths. `largest` is the number farthest from 0: its dimension, its value, its share of the
    squared size. `turn` is the cosine of the vectors before and after the block. `nearest` are the positions of the
    most similar other tokens, most similar first, and `cosines` their cosines.
    """
    states = [trace[f"hidden_states.{i}"][0] for i in range(len(encoder.stack.blocks) + 1)]
    if encoder.stack.last_map:  # it changes the width
        states[-1] = trace[encoder.stack.last_norm][0]
    moves_by_block = []
    for i, state in enumerate(states):
        sizes, more, entry = _sizes(state), dict[str, list[float]](), list[dict[str, Any]]()
        if i:
            sublayers = zip(("attention", "feed_forward"), encoder.stack.blocks[i - 1].parts, strict=False)
            more = {name: _sizes(trace[part.output_norm or part.work.output][0]) for name, part in sublayers}
            more["turn"] = np.diagonal(cosine_similarity(states[i - 1], state)).tolist()
        for position, row in enumerate(cosine_similarity(state)):
            order = [other for other in np.argsort(-row, kind="stable").tolist() if other != position][:NEAREST]
            entry.append(
                {
                    "size": sizes[position],
                    "largest": _largest(state[position], sizes[position]),
                    "nearest": order,
                    "cosines": row[order].tolist(),
                    **{name: numbers[position] for name, numbers in more.items()},
                }
            )
        moves_by_block.append(entry)
    return moves_by_block


def _largest(row: Array, size: float) -> tuple[int, float, float]:
    dimension = int(np.abs(row).argmax())
    number = float(row[dimension])
    return dimension, number, (number / size) ** 2 if size else 0.0


def _sizes(rows: Array) -> list[float]:
    lengths: list[float] = np.linalg.norm(rows.astype(np.float64), axis=-1).tolist()
    return lengths


# -- two texts side by side --------------------------------------------------------------------------------------


def common_token(tokens: Sequence[str], others: Sequence[str], positions: Sequence[int]) -> int | None:
    """Return the position of the longest token that both texts have; None if they share no token."""
    shared = [i for i in positions if tokens[i] in others]
    return max(shared, key=lambda i: len(tokens[i]), default=None)


def beside_numbers(encoder: Encoder, trace: Trace, tokens: Sequence[str], other: Trace) -> dict[str, Any]:
    """Compute the numbers that the script draws: cosines of each token of one text and each of the other, by block.

    trace: of the page's text; other, tokens: of the text beside.
    """
    count = len(encoder.stack.blocks)
    states = [f"hidden_states.{i}" for i in range(count + 1)]
    cosines = [cosine_similarity(trace[name][0], other[name][0]) for name in states]
    return {
        "tokens": list(tokens),
        "first": min(1, len(tokens) - 1),
        "attention": packed(np.stack([other[f"attentions.{i}"][0] for i in range(count)])),
        "cosines": packed_float32(np.stack(cosines)),
        "sum": sum_numbers(encoder, trace[states[-1]][0], other[states[-1]][0]),
    }


def sum_numbers(encoder: Encoder, rows: Array, others: Array) -> dict[str, Any]:
    """Compute what each pair of tokens adds to the similarity of two texts; "wrong": why it is no such sum.

    rows, others: each text's last hidden state (seq, dim).
    """
    try:
        pairs = pairs_of_rows(encoder, rows, others)
    except (ValueError, MinibertError) as error:
        return {"wrong": f"Not shown: {error}."}
    numbers = packed_float32(pairs)
    measure = encoder.sentence_config.measure
    return {"numbers": numbers, "shape": pairs.shape, "measure": measure, "similarity": float(pairs.sum())}


def beside_part(text: str, data: str) -> dict[str, str]:
    """Render this part of the page: its elements ("beside") and its script; data: its numbers, as JSON."""
    return rendered_part("beside", text=escape(visible(text)), data=data)
