"""The pieces of the page of `minibert explain --html`: templates and packed numbers; its first and its last part.

The first part shows the rows of the input layer as bands of colours, and the norm's steps. The last part compares two
texts (`--beside`); its attention weights are those of the other text's trace, to the bit.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.similarity import cosine_similarity
from minibert.families.parts.plan import Plan, Step, value

from .explain import name_of
from .text import visible

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

LARGEST = 10_000_000  # bytes of a page
BYTES = 4 / 3  # base64 characters for one byte


# -- templates and packed numbers --------------------------------------------------------------------------------


def packed(numbers: Array) -> str:
    """Pack numbers as little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<")).tobytes()).decode()


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


def stages(trace: Mapping[str, Array], plan: Plan, values: dict[str, Any]) -> Iterator[Stage]:
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


# -- two texts side by side --------------------------------------------------------------------------------------


def common_token(tokens: Sequence[str], others: Sequence[str], positions: Sequence[int]) -> int | None:
    """Return the position of the longest token that both texts have; None if they share no token."""
    both = [i for i in positions if tokens[i] in others]
    return max(both, key=lambda i: len(tokens[i]), default=None)


def beside_numbers(
    encoder: Encoder, trace: Mapping[str, Array], tokens: Sequence[str], other: Mapping[str, Array]
) -> dict[str, Any]:
    """Compute the numbers that the script draws: cosines of each token of one text and each of the other, by block.

    trace: of the page's text; other, tokens: of the text beside.
    """
    blocks = len(encoder.stack.blocks)
    states = [f"hidden_states.{i}" for i in range(blocks + 1)]
    cosines = [cosine_similarity(trace[name][0], other[name][0]) for name in states]
    return {
        "tokens": list(tokens),
        "first": min(1, len(tokens) - 1),
        "attention": packed(np.stack([other[f"attentions.{i}"][0] for i in range(blocks)])),
        "cosines": packed(np.stack(cosines).astype(np.float32)),
    }


def beside_part(text: str, data: str) -> dict[str, str]:
    """Render this part of the page: its elements ("beside") and its script; data: its numbers, as JSON."""
    return rendered_part("beside", text=escape(visible(text)), data=data)
