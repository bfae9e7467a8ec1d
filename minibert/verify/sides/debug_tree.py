"""A folder that transformers' `model_addition_debugger_context` has written: one forward call, module by module.

The context keeps tensors where it is told so: with `do_prune_layers=False, use_repr=False`. A module that is called
twice writes its second call over its first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import Subject

from .modules import Paths, Seen, Source
from .numpy_files import opened
from .traces import Traces, read_arrays

TREE = "_debug_tree_FULL_TENSORS.json"
KIND = "debugged"  # what its one batch is called
ASKED = "do_prune_layers=False, use_repr=False"


class Node(NamedTuple):
    """One call of a module: its path, what it was given, and its first output."""

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    output: Any


class DebugTree(Source):
    """Such a folder. Raises ValueError for one whose tensors are printed or whose middle layers were left out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder, path = folder, next(iter(sorted(folder.glob(f"*{TREE}"))), None)
        if path is None:
            raise ValueError(
                f"{folder}: expected the folder that model_addition_debugger_context of transformers writes, found no "
                f"*{TREE} in it; put arrays into one file by numpy.savez"
            )
        try:
            self._nodes = list(_nodes(json.loads(opened(path).read_text("utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: expected the tree of modules as the debugger writes it ({error!r})") from None

    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        whole, *rest = self._nodes
        nodes = [node._replace(path=node.path.removeprefix(f"{whole.path}.")) for node in rest]
        given = {**whole.kwargs, **dict(zip(("input_ids",), whole.args, strict=False))}
        arrays = {name: self._array(x) for name, x in given.items() if name != "labels"}
        inputs = {name: x for name, x in arrays.items() if x is not None}
        if not {"input_ids", "inputs_embeds"} & set(inputs):
            raise ValueError(f"{self.name} has no input_ids or inputs_embeds of the whole model, only {list(inputs)}")
        paths = Paths(subject, [node.path for node in nodes], self.name)
        shown = {subject.place(key) for node in nodes for key in paths.leaving.get(node.path, ())}
        if gone := sorted({subject.place(key) for key in subject.leaving} - shown):
            raise ValueError(
                f"{self.name} has no module of {gone[0]}: the debugger leaves out middle layers; write it with {ASKED}"
            )
        leaving: dict[str, list[Array | None]] = {}
        entering: dict[str, list[Array | None]] = {}
        for node in nodes:
            into = _first(node.args) or node.kwargs.get("hidden_states")
            for calls, wanted, x in (leaving, paths.leaving, node.output), (entering, paths.entering, into):
                if node.path in wanted:
                    calls[node.path] = [*[None] * len(calls.get(node.path, ())), self._array(x)]
        return {KIND: inputs}, {KIND: paths.trace(Seen(leaving, entering, self._known(subject, whole.path)), inputs)}

    def _known(self, subject: Subject, model: str) -> dict[str, Array]:
        """Read the whole model's outputs, which the tree does not name; the last hidden state is the normed one."""
        depth, outputs = len(subject.scores), f"{model}_outputs_"
        both = (self._folder / f"{outputs}encoder_last_hidden_state.safetensors").is_file()
        own = f"{subject.layer.side}_" if both else ""
        names = {f"{name}.{i}": f"{own}{name}_{i}" for name in ("hidden_states", "attentions") for i in range(depth)}
        names |= {f"hidden_states.{depth}": f"{own.removeprefix('decoder_')}last_hidden_state"} if depth else {}
        names |= {"logits": "logits"} if subject.head is not None else {}
        files = {key: self._folder / f"{outputs}{name}.safetensors" for key, name in names.items()}
        return {key: _read(path) for key, path in files.items() if path.is_file()}

    def _array(self, x: Any) -> Array | None:
        """Read a tensor of the tree; None for anything else. Raises ValueError for one that is printed."""
        if not isinstance(x, dict) or "value" not in x:
            return None
        if not isinstance(x["value"], str):
            raise ValueError(
                f"{self.name} has printed tensors and no middle layers, as the debugger writes it by default; write it "
                f"with model_addition_debugger_context(model, path, {ASKED})"
            )
        return _read(self._folder / Path(x["value"]).name)


def _read(path: Path) -> Array:
    arrays = read_arrays(path)
    if "data" not in arrays:
        raise ValueError(f"{path}: expected one tensor called 'data', as the debugger writes it")
    return arrays["data"]


def _nodes(tree: Any) -> Iterator[Node]:
    """List a module and all below it, in the order in which they were called. Raises TypeError for another form."""
    given: dict[str, Any] = {"args": [], "kwargs": {}} | dict(tree.get("inputs") or {})
    node = Node(str(tree["module_path"]), given["args"], given["kwargs"], _first(tree.get("outputs")))
    if not isinstance(node.args, list) or not isinstance(node.kwargs, dict):
        raise TypeError(f"inputs of {node.path!r} are no list of args and dict of kwargs")
    yield node
    for child in tree.get("children", ()):
        yield from _nodes(child)


def _first(made: Any) -> Any:
    """A module's output, the first where it gives several."""
    return made[0] if isinstance(made, list) and made else made
