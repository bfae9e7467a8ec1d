"""Explain in the exercise's terms why an answer stops, or why it is right only on its notebook's inputs."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from judge import Trial
from switched_off import MODELS

SHAPES = re.compile(
    "broadcast|matmul|reshape|inhomogeneous|for axis|indices for|for array|aligned|array dimension|array element|"
    "axes don't match|operand|boolean index"
)
ABSENT = re.compile("is this the right tokenizer|is not there")


def why(answer: FunctionType, error: BaseException, trial: Trial) -> str:
    """Explain in one sentence why an answer stops, and in which line."""
    said, at = str(error), line_of(answer, error)
    if isinstance(error, ValueError | IndexError) and SHAPES.search(said):
        reason = "an index is too large" if "out of bounds" in said else "shapes do not fit"
        return f"stops: {reason}{at}. {_given(answer, trial)}Print the shapes on the way: keepdims=True keeps an axis"
    model = trial.arguments[0]
    if isinstance(model, MODELS) and (isinstance(error, KeyError) or ABSENT.search(said)):
        return (
            f"stops: the drawn model has no such block, head, token or value{at}. It has {len(model.stack.blocks)} "
            f"blocks of {model.stack.heads} heads. Use the numbers of the arguments: are two of them exchanged?"
        )
    return f"stops: {type(error).__name__}: {said}{at}"


def _given(answer: FunctionType, trial: Trial) -> str:
    """Name the shapes of an answer's arguments, by its own names, and the shape that is wanted."""
    names = answer.__code__.co_varnames[: answer.__code__.co_argcount] or ("",) * len(trial.arguments)
    given = zip(names, trial.arguments, strict=True)
    shapes = [f"{name} {x.shape}".strip() for name, x in given if isinstance(x, np.ndarray)]
    return f"Given: {', '.join(shapes)}; wanted: {np.shape(trial.wanted) or 'one value'}. " if shapes else ""


def line_of(answer: FunctionType, error: BaseException) -> str:
    """Name the line at which an answer stops: the last line of its file or cell, counted from the `def`."""
    file, first, line, step = answer.__code__.co_filename, answer.__code__.co_firstlineno, 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno - first + 1
        step = step.tb_next
    return f" (line {line}, counted from its def)" if line > 0 else ""


def from_outside(answer: FunctionType) -> str:
    """Name what an answer, or a function of its notebook that it calls, reads from outside, except functions.

    "" if it reads nothing.
    """
    found, todo = dict[str, Any](), [answer]
    for function in todo:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        known = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
        for name in {*_globals(function.__code__), *function.__code__.co_freevars} & known.keys():
            value = known[name]
            if isinstance(value, FunctionType) and value.__globals__ is answer.__globals__ and value not in todo:
                todo.append(value)
            elif _is_module(value) or not (callable(value) or isinstance(value, ModuleType)):
                found[name] = value
    if not found:
        return ""
    names = [f"`{name}`" + f" ({x})" * isinstance(x, int | float) for name, x in sorted(found.items())]
    return (
        f"reads {' and '.join(names)} from outside the function. The random inputs here have other sizes: "
        "use only the arguments, and read a size from a shape, as in q.shape[-1]"
    )


def _is_module(value: Any) -> bool:
    """Check whether a value is a part of a model, which can be called as a function can."""
    return type(value).__module__.partition(".")[0] == "minibert"


def _globals(code: CodeType) -> Iterator[str]:
    """List the global names that code reads, with the code inside it."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
