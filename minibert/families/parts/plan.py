"""A model's formulas as a list of steps: `verify` computes them plainly, one padded batch, and `explain` reads them.

Each bound part gives its own steps; a block's ask the model's `Stack`. A mistake is another step in the place of one
of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

from minibert.equations import blocks as equations
from minibert.equations.input_layer import Array, layer_norm


class Step(NamedTuple):
    """One formula: `values[key] = formula(*(values[name] for name in of))`.

    key       the name of its value, in a trace; one that begins with "." stands between two of a trace's
    kind      dense, norm, activation; of an input layer ids, positions, rows, embeds, add, scale, rows of padding, and
              own, a user's; of attention cut, view, split, rotation, share, term, scores, keep, mask, masked,
              softmax, gather, join; product, sum, state; of a head take, logits
    of        the names of its inputs
    part      the bound part that it belongs to: a module, an attention, a residual
    says      the formula in words; {0}, {1} are its inputs
    function  the function of `equations` that it calls
    """

    key: str
    kind: str
    formula: Callable[..., Any]
    of: tuple[str, ...]
    part: Any = None
    says: str = "{0}"
    function: Callable[..., Any] | None = None

    @property
    def hidden(self) -> bool:
        """Whether a trace has no such intermediate."""
        return self.key.startswith(".")


Plan = Mapping[str, Step]
REAL = ".real"  # which tokens of a batch are no padding, bool (batch, seq)
IDS = ".ids"  # its ids (batch, seq); None where rows were passed in their place


def by_key(steps: Iterable[Step]) -> dict[str, Step]:
    """Make a plan of steps in order."""
    return {step.key: step for step in steps}


def value(key: str, plan: Plan, values: MutableMapping[str, Any]) -> Any:
    """Compute one value, and its inputs where `values` do not have them yet."""
    if key not in values:
        step = plan[key]
        values[key] = step.formula(*(value(name, plan, values) for name in step.of))
    return values[key]


def run(plan: Plan, values: MutableMapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Compute all that a trace has, in order; a step that gives None has nothing there."""
    for key, step in plan.items():
        if not step.hidden and (x := value(key, plan, values)) is not None:
            yield key, x


# -- steps that several parts have -------------------------------------------------------------------------------


def mapped(path: str, module: Any, x: str) -> Step:
    """A linear map."""
    stored, bias = "weight" if module.transposed else "weight^T", " + bias" if module.bias is not None else ""
    return Step(path, "dense", module, (x,), module, f"{module!r}: {{0}} @ {stored}{bias}", equations.linear)


def normed(path: str, module: Any, x: str) -> Step:
    """A norm of each row."""
    plus = getattr(module, "plus", None)
    function: Callable[..., Any] = layer_norm if plus is None else equations.rms_norm
    if plus is None:
        bias = " + bias" if module.bias is not None else ""
        says = f"(x - mean) / sqrt(variance + {module.eps}) * weight{bias}"
    else:
        weight = f"({plus:g} + weight)" if plus else "weight"
        says = f"x / sqrt(mean(x^2) + {module.eps}) * {weight}"
    return Step(path, "norm", module, (x,), module, f"{says}, x = {{0}}, row by row", function)


def activated(path: str, formula: Callable[[Array], Array], x: str) -> Step:
    """An activation; its formula in words is that of its docstring."""
    _, _, docstring = (formula.__doc__ or "").partition("`")
    says = f"{docstring.partition('`')[0]}, x = {{0}}, each number by itself"
    return Step(path, "activation", formula, (x,), formula, says, formula)
