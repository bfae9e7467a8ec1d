"""Another module's weight or bias in the place of a module's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minibert.families.parts.block_names import module_path
from minibert.families.parts.bound_blocks import Dense
from minibert.families.parts.plan import Step
from minibert.verify.mistakes.mistake import At, Mistake

OTHER = "Each module has numbers of its own."


def _modules(at: At) -> dict[str, Any]:
    """The modules of the whole model, and of the head if this is one, by their paths."""
    found = dict(at.layer.modules) | at.stack.others
    for block in at.stack.blocks:
        found |= block.modules
    return {module_path(key): x for key, x in found.items()} | {
        module_path(step.key): step.part for step in (*at.of("dense"), *at.of("norm"))
    }


def of_others(key: str, at: At) -> Iterator[Mistake]:
    """Another module's weight or bias: of the same kind and shape elsewhere in the model."""
    own: Any = at.plan[key].part
    if at.plan[key].kind not in ("dense", "norm"):
        return

    def taking(path: str, take: Callable[[Any, Any], Any]) -> Callable[[At], list[Step]]:
        return lambda at: [at.plan[key]._replace(formula=take(at.plan[key].part, _modules(at)[path]))]

    for path, module in _modules(at).items():
        if path == module_path(key) or type(module) is not type(own) or module.weight.shape != own.weight.shape:
            continue
        both = "weight" if own.bias is None else "weight and bias"
        if not isinstance(own, Dense):
            yield Mistake(f"{both} of {path}", OTHER, taking(path, lambda own, m: type(own)(m.weight, m.bias, own.eps)))
            continue
        yield Mistake(f"{both} of {path}", OTHER, taking(path, lambda own, m: m))
        if own.bias is not None:
            of_weight = taking(path, lambda own, m: Dense(m.weight, own.bias, own.transposed))
            yield Mistake(f"weight of {path}", OTHER, of_weight)
            if module.bias is not None:
                of_bias = taking(path, lambda own, m: Dense(own.weight, m.bias, own.transposed))
                yield Mistake(f"bias of {path}", OTHER, of_bias)
