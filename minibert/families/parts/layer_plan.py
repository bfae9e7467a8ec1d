"""An input layer's formulas as a list of steps, as `plan.py` has them of blocks and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array, lookup, project, scale

from .bound_blocks import Dense
from .config import Config
from .modules import Embedding
from .plan import Plan, Step, by_key, mapped, normed
from .steps import Bound, Inputs, Lookup, Mask, Norm, Positions, Project, Scale, Tokens

GIVEN = ".given"  # what the caller passes, as `Inputs`, and how many tokens are in a cache
POSITIONS = "position_ids"


def given(batch: Mapping[str, Any]) -> tuple[Inputs, int]:
    """Put the keywords of a checked call together; one sequence becomes a batch."""
    ids: dict[str, Any] = {name: np.atleast_2d(x) for name, x in batch.items() if name.endswith(("_ids", "langs"))}
    embeds, mask = batch.get("inputs_embeds"), batch.get("attention_mask")
    if embeds is not None:
        embeds = embeds[None] if np.ndim(embeds) == 2 else embeds
    shape = np.shape(ids["input_ids"] if embeds is None else embeds)
    inputs = Inputs(shape[0], shape[1], ids, embeds, np.atleast_2d(mask) if mask is not None else None)
    return inputs, int(np.asarray(batch.get("past_length", 0)).item())


def layer_plan(bound: Sequence[Bound], config: Config) -> Plan:
    """The steps of a bound layer. One gives None where a batch has no such intermediate."""
    steps, x = list[Step](), list[str]()  # x: what is added up before the next step takes the sum
    for step, module in bound:
        if isinstance(step, Lookup):
            steps += _looked_up(step, module, config)
            x.append(step.key)
            if isinstance(step, Tokens):
                x = [_or_embeds(steps, step.key, module.scale)]
        elif isinstance(step, Scale) and not step.embeds:
            words = next(each.key for each in steps if each.kind == "rows")
            steps.append(_scaled(step.path, module, words))
            x = [_or_embeds(steps, step.path, module)]
        else:
            # a user's own two norms have two sums; a trace shows one
            visible = isinstance(step, Norm) and all(each.key != "sum" for each in steps)
            entering = _sum(steps, "sum" if visible else f".sum of {step.path}", x, visible)
            steps.append(_taking(step, module, config, entering))
            x = [step.path]
    if all(each.key != "sum" for each in steps):
        _sum(steps, "sum", x, True)
    return by_key(sorted(steps, key=lambda step: step.kind != "positions"))  # a trace begins with these


def _sum(steps: list[Step], key: str, of: Sequence[str], visible: bool) -> str:
    if len(of) == 1 and not visible:
        return of[0]
    steps.append(Step(key, "add", added, tuple(of)))
    return key


def _or_embeds(steps: list[Step], key: str, factor: float) -> str:
    """The caller's own rows where there are some."""

    def with_embeds(given: tuple[Inputs, int], rows: Array | None) -> Array | None:
        return rows if rows is not None else given[0].inputs_embeds

    steps.append(Step(f".{key} or embeds", "embeds", with_embeds, (GIVEN, key), factor, "{1}"))
    return f".{key} or embeds"


def _looked_up(step: Lookup, module: Embedding, config: Config) -> list[Step]:
    part, counted = Bound(step, module), isinstance(step, Positions)
    ids = POSITIONS if counted else f".ids of {step.key}"
    formula = partial(positions, step.default, config) if counted else partial(passed, step, config)
    return [
        Step(ids, "positions" if counted else "ids", formula, (GIVEN,), step),
        Step(
            step.key, "rows", partial(looked_up, module, step.extra), (ids,), part, _said_of_rows(step, module), lookup
        ),
    ]


def _said_of_rows(step: Lookup, module: Embedding) -> str:
    offset = f" + {step.extra}" if step.extra else ""
    factor = f", times {module.scale:.6g}" if module.scale != 1.0 else ""
    return f"{module!r}: the row of each {kind_of(step.ids)}{offset}{factor}"


def kind_of(ids: str) -> str:
    """Name one of these ids: "id", "position", "type"."""
    return {"input_ids": "id", "token_type_ids": "type", "langs": "language"}.get(
        ids, ids.removesuffix("_ids").replace("_", " ")
    )


def _scaled(path: str, factor: float, x: str) -> Step:
    return Step(path, "scale", partial(times, factor), (x,), factor, f"times {factor:.6g}", scale)


def _taking(step: Any, module: Any, config: Config, x: str) -> Step:
    if isinstance(step, Norm):
        return normed(step.path, module, x)
    if isinstance(step, Project):
        return mapped(step.path, Dense(module.weight, module.bias), x)._replace(formula=module, function=project)
    if isinstance(step, Scale):
        return _scaled(step.path, module, x)
    if isinstance(step, Mask):
        return Step(
            step.path,
            "rows of padding",
            partial(hidden, step, config),
            (x, GIVEN),
            step,
            "times the attention mask, so that rows of padding become zero",
        )
    apply = step.apply  # a user's own
    return Step(step.path, "own", lambda x, given: apply(module, given[0], x.copy()), (x, GIVEN), module)


# -- the formulas ------------------------------------------------------------------------------------------------


def passed(step: Lookup, config: Config, given: tuple[Inputs, int]) -> Array | None:
    """The ids of a lookup that are passed, or the family's default."""
    inputs, past = given
    ids: Any = inputs.ids.get(step.ids)
    ids = step.default(inputs, config, past) if ids is None else ids
    return None if ids is None else np.broadcast_to(ids, (inputs.batch, inputs.seq))


def positions(count: Callable[[Inputs, Config, int], Any], config: Config, given: tuple[Inputs, int]) -> Array:
    """The position of each token, passed or counted: (batch, seq), or (1, seq) for all texts."""
    inputs, past = given
    found = inputs.ids.get(POSITIONS)
    found = count(inputs, config, past) if found is None else found
    return np.arange(found.start, found.stop)[None] if isinstance(found, slice) else np.asarray(found)


def looked_up(module: Embedding, extra: int, ids: Array | None) -> Array | None:
    """The row of each id. A port's positions may be beyond the table: then the nearest one."""
    if ids is None:
        return None
    rows = module.table.rows(np.clip(ids + extra, 0, module.table.shape[0] - 1))
    return rows if module.scale == 1.0 else scale(rows, module.scale)


def times(factor: float, x: Array | None) -> Array | None:
    """Times the layer's factor."""
    return None if x is None else scale(x, factor)


def added(*rows: Array | None) -> Array:
    """The sum, one after the other; types may be missing."""
    return np.asarray(reduce(np.add, [x for x in rows if x is not None]))


def hidden(step: Mask, config: Config, x: Array, given: tuple[Inputs, int]) -> Array:
    """Rows of padding become zero."""
    inputs, _ = given
    mask = step.default(inputs, config) if inputs.attention_mask is None else inputs.attention_mask
    return x if mask is None else np.asarray(x * mask[..., None].astype(x.dtype))
