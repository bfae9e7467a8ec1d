"""The first part of the page of `minibert explain --html`: the bands of colours, and the norm's steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from minibert.equations import input_layer as equations
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import Plan, Step, value
from minibert.show.text.explain import name_of

from .page_parts import packed

# what each kind of lookup says about a token
MEANING = {
    "input_ids": "which token it is",
    "token_type_ids": "first or second text",
    "position_ids": "where it stands",
}
MADE = {"norm": "mean 0, variance 1, then weight and bias", "dense": "to another width"}


class Stage(NamedTuple):
    """One band of colours: `sign` says how it comes from those above: "+" added, "=" their sum, "→" made of it.

    rows (seq, dim). `step` of the plan made them, None where they are a sum. `taken` are their numbers in the step's
    table, by the token's `ids`; None where it has none.
    """

    name: str
    sign: str
    rows: Array
    step: Step | None = None
    taken: Array | None = None
    ids: str = ""

    @property
    def tells(self) -> str:
        """Describe these numbers in a few words."""
        return (MEANING | MADE).get(self.ids or (self.step.kind if self.step else ""), "")


def stages(trace: Mapping[str, Array], plan: Plan, values: dict[str, Any]) -> Iterator[Stage]:
    """List the stages of one text in the order of computing, with the sums."""
    addends = 0
    for key, step in plan.items():
        if step.kind == "add":
            if addends > 1:
                yield Stage("sum", "=", value(key, plan, values)[0])
        elif key not in trace or step.kind == "positions":  # what no ids were passed for, and ids
            continue
        elif step.kind == "rows":
            lookup, ids = plan[step.of[0]].part, value(step.of[0], plan, values)
            taken = ids[0] + lookup.extra
            yield Stage(name_of(key), "+" * bool(addends), trace[key][0], step, taken, lookup.ids)
            addends += 1
        else:
            yield Stage(name_of(key), "→", trace[key][0], step)
            addends = 1


def packed_group(group: Sequence[Stage]) -> dict[str, Any]:
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
    """Find the end of the colour scale: 99 % of the numbers are smaller."""
    numbers = np.abs(np.concatenate([np.ravel(row) for row in rows])) if rows else np.zeros(0)
    finite = numbers[np.isfinite(numbers)]
    return float(np.percentile(finite, 99)) or 1.0 if finite.size else 1.0


def norm_of(groups: Sequence[Sequence[Stage]], tokens: Sequence[str]) -> tuple[dict[str, Any] | None, str]:
    """Compute LayerNorm in float64: numbers for the script, and a table of each token's mean and variance."""
    made = ((g, s, stage.step) for g, group in enumerate(groups) for s, stage in enumerate(group))
    norm = next(((g, s, step.part) for g, s, step in made if step and step.kind == "norm"), None)
    if norm is None:
        return None, ""
    g, s, module = norm
    before, after = (groups[g][i].rows.astype(np.float64) for i in (s - 1, s))
    standard = equations.layer_norm(before, np.ones(before.shape[-1]), eps=module.eps)
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
