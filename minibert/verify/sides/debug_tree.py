"""A folder that transformers' `model_addition_debugger_context` has written: one forward call, module by module.

The context keeps tensors where it is told so: with `do_prune_layers=False, use_repr=False`. A module that is called
twice writes its second call over its first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import Subject

from .modules import Paths, Seen, Source
from .numpy_files import opened
from .traces import Traces, read_arrays

TREE = "_debug_tree_FULL_TENSORS.json"
KIND = "debugged"  # what its one batch is called
ASKED = "do_prune_layers=False, use_repr=False"


class DebugTree(Source):
    """Such a folder. Raises ValueError for one whose tensors are printed or whose middle layers were left out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        path = next(iter(sorted(folder.glob(f"*{TREE}"))), None)
        if path is None:
            raise ValueError(
                f"{folder}: expected the folder that model_addition_debugger_context of transformers writes, found no "
                f"*{TREE} in it; put arrays into one file by numpy.savez"
            )
        try:
            self._tree = json.loads(opened(path).read_text("utf-8"))
            self._class = str(self._tree["module_path"])
            self._nodes = [(node["module_path"].removeprefix(f"{self._class}."), node) for node in _below(self._tree)]
            self._given, *_ = [_inputs(node) for node in (self._tree, *_below(self._tree))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: expected the tree of modules as the debugger writes it ({error!r})") from None

    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        inputs = {name: x for name, x in self._arrays(self._given["kwargs"]).items() if name != "labels"}
        for x in self._given["args"][:1]:
            inputs |= self._arrays({"input_ids": x})
        if not {"input_ids", "inputs_embeds"} & set(inputs):
            raise ValueError(f"{self.name} has no input_ids or inputs_embeds of the whole model, only {list(inputs)}")
        nodes = self._nodes
        paths = Paths(subject, [path for path, _ in nodes], self.name)
        blocks = {subject.place(key) for key in subject.leaving}
        shown = {subject.place(key) for path, _ in nodes for key in paths.leaving.get(path, ())}
        if gone := sorted(blocks - shown):
            raise ValueError(
                f"{self.name} has no module of {gone[0]}: the debugger leaves out middle layers; write it with {ASKED}"
            )
        leaving: dict[str, list[Array | None]] = {}
        entering: dict[str, list[Array | None]] = {}
        for path, node in nodes:
            for calls, wanted, x in ((leaving, paths.leaving, _first(node.get("outputs"))),
                                     (entering, paths.entering, _entering(node))):  # fmt: skip
                if path in wanted:
                    before: list[Array | None] = [None] * len(calls.get(path, ()))
                    calls[path] = [*before, self._array(x)]
        seen = Seen(leaving, entering, self._known(subject))
        return {KIND: inputs}, {KIND: paths.trace(seen, inputs)}

    def _known(self, subject: Subject) -> dict[str, Array]:
        """Read the whole model's outputs, which the tree does not name; the last hidden state is the normed one."""
        depth, outputs = len(subject.scores), f"{self._class}_outputs_"
        both = (self._folder / f"{outputs}encoder_last_hidden_state.safetensors").is_file()
        own = f"{subject.layer.side}_" if both else ""
        names = {f"hidden_states.{i}": f"{own}hidden_states_{i}" for i in range(depth)}
        names |= {f"attentions.{i}": f"{own}attentions_{i}" for i in range(depth)}
        names |= {f"hidden_states.{depth}": f"{own.removeprefix('decoder_')}last_hidden_state"} if depth else {}
        names |= {"logits": "logits"} if subject.head is not None else {}
        files = {key: self._folder / f"{outputs}{name}.safetensors" for key, name in names.items()}
        return {key: _read(path) for key, path in files.items() if path.is_file()}

    def _arrays(self, named: Mapping[str, Any]) -> dict[str, Array]:
        return {name: array for name, x in named.items() if (array := self._array(x)) is not None}

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
    arrays, _ = read_arrays(path)
    if "data" not in arrays:
        raise ValueError(f"{path}: expected one tensor called 'data', as the debugger writes it")
    return arrays["data"]


def _below(node: Any) -> Iterator[Any]:
    """All modules, in the order in which they were called."""
    for child in node.get("children", ()):
        yield child
        yield from _below(child)


def _first(made: Any) -> Any:
    """A module's output, the first where it gives several."""
    return made[0] if isinstance(made, list) and made else made


def _inputs(node: Any) -> dict[str, Any]:
    """Give the inputs of a module. Raises TypeError where it is in another form."""
    given: dict[str, Any] = {"args": [], "kwargs": {}} | dict(node.get("inputs") or {})
    if not isinstance(given["args"], list) or not isinstance(given["kwargs"], dict):
        raise TypeError(f"inputs of {node['module_path']!r} are no list of args and dict of kwargs")
    return given


def _entering(node: Any) -> Any:
    given = _inputs(node)
    return _first(given["args"]) or given["kwargs"].get("hidden_states")
