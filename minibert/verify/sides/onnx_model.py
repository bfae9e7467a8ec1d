"""An ONNX model whose intermediates are outputs, computed by onnxruntime from our own batches.

`torch.onnx.export` writes into each node's metadata of which module it is; onnxruntime does not show that, so the
package `onnx` reads it: whoever marks intermediates as outputs has that package.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import Subject

from .modules import Paths, Seen, Source
from .numpy_files import opened
from .traces import Traces, tokens_of

SCOPES = "pkg.torch.onnx.name_scopes"
NEEDED = {"onnx": "pip install 'onnx>=1.23'", "onnxruntime": "pip install 'onnxruntime>=1.31'"}
FILLED = {"attention_mask": np.ones, "token_type_ids": np.zeros}  # where a batch of ours has none
DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}


class Node(NamedTuple):
    """One node: its kind, what it takes and gives, and the path of the module that it is of, None where none is said"""

    kind: str
    takes: Sequence[str]
    gives: Sequence[str]
    path: str | None


class OnnxModel(Source):
    """Such a file. Raises ImportError where onnx or onnxruntime is not installed."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(opened(path)))
        for name, remedy in NEEDED.items():
            if importlib.util.find_spec(name) is None:
                raise ImportError(f"{path}: an ONNX model needs {name} here: {remedy}")

    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        import onnxruntime

        nodes = self._nodes()
        modules = list(dict.fromkeys(node.path for node in nodes if node.path))
        if not modules:
            raise ValueError(f"{self.name}: no node has {SCOPES}; export it by torch.onnx.export(..., dynamo=True)")
        paths = Paths(subject, modules, self.name)
        leaving = {path: _leaving(nodes, path) for path in paths.leaving}
        entering = {path: _entering(nodes, path) for path in paths.entering}
        softmax = {key: value for path, keys in paths.softmax.items() for key, value in _softmax(nodes, path, keys)}
        wanted = {name for found in (*leaving.values(), *entering.values()) for name in found} | {*softmax.values()}
        with self._computing():
            session = onnxruntime.InferenceSession(self.name, providers=["CPUExecutionProvider"])
        marked = [each.name for each in session.get_outputs()]
        if not (asked := [name for name in marked if name in wanted]):
            raise ValueError(f"{self.name}: none of its outputs is what a module gives; mark all intermediates as such")
        self.lines = [f"{len(asked)} of its {len(marked)} outputs are intermediates of a trace"]
        inputs, found, left = {}, {}, []
        for kind, batch in batches.items():
            feeds = _feeds(batch, session.get_inputs())
            if feeds is None:
                left.append(kind)
                continue
            with self._computing():
                made = dict(zip(asked, session.run(asked, feeds), strict=True))
            seen = Seen(_arrays(leaving, made), _arrays(entering, made),
                        {key: made[name] for key, name in softmax.items() if name in made})  # fmt: skip
            inputs[kind], found[kind] = batch, paths.trace(seen, batch)
        if not found:
            shown = ", ".join(f"{each.name} {each.shape}" for each in session.get_inputs())
            raise ValueError(f"{self.name} takes {shown}, as no batch has them; export it with dynamic shapes")
        self.lines += [f"left out, since the ONNX model does not take them so: {', '.join(left)}"] if left else []
        return inputs, found

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Name the file where onnxruntime cannot open or compute it: a missing file of weights, an unknown operator."""
        try:
            yield
        except Exception as error:
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            raise ValueError(f"{self.name}: onnxruntime cannot compute it: {error!s:.200}") from None

    def _nodes(self) -> list[Node]:
        import onnx
        from google.protobuf.message import DecodeError

        try:
            graph = onnx.load(self.name, load_external_data=False).graph
        except DecodeError as error:
            raise ValueError(f"{self.name}: expected an ONNX model ({error})") from None
        return [Node(node.op_type, node.input, node.output, self._module(node)) for node in graph.node]

    def _module(self, node: Any) -> str | None:
        """Give the path of the innermost module: the scopes end with the node's own name."""
        for each in node.metadata_props:
            if each.key == SCOPES:
                try:
                    scopes = ast.literal_eval(each.value)
                except (ValueError, SyntaxError, MemoryError, RecursionError) as error:  # of very many brackets too
                    kind = type(error).__name__
                    raise ValueError(f"{self.name}: {SCOPES} of node {node.name!r} is no list ({kind})") from None
                return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else None
        return None


def _is_in(node: Node, path: str) -> bool:
    return node.path is not None and f"{node.path}.".startswith(f"{path}.")


def _leaving(nodes: Sequence[Node], path: str) -> list[str]:
    """List the outputs of a module, call by call: values of its nodes that other nodes take, or none."""
    within = [node for node in nodes if _is_in(node, path)]
    kept = {name for node in within for name in node.takes}
    taken = {name for node in nodes if not _is_in(node, path) for name in node.takes}
    return [node.gives[0] for node in within if node.gives[0] in taken or node.gives[0] not in kept]


def _entering(nodes: Sequence[Node], path: str) -> list[str]:
    """List the inputs of a module, call by call: values of other modules' nodes."""
    others = {name for node in nodes if node.path is not None and not _is_in(node, path) for name in node.gives}
    return list(dict.fromkeys(name for node in nodes if _is_in(node, path) for name in node.takes if name in others))


def _softmax(nodes: Sequence[Node], path: str, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Scores and attention weights: before and after the softmax among an attention's own nodes, call by call."""
    found = [node for node in nodes if node.kind == "Softmax" and node.path == path]
    if len(found) == len(keys):
        for node, (scores, weights) in zip(found, keys, strict=True):
            yield from ((scores, node.takes[0]), (weights, node.gives[0]))


def _arrays(names: Mapping[str, Sequence[str]], made: Mapping[str, Array]) -> dict[str, list[Array | None]]:
    """Give the arrays that were computed; integers are left out: a graph passes sizes on beside outputs."""
    found = {path: [made.get(name) for name in several] for path, several in names.items()}
    return {path: [x for x in several if x is None or x.dtype.kind == "f"] for path, several in found.items()}


def _feeds(batch: Mapping[str, Array], inputs: Collection[Any]) -> dict[str, Array] | None:
    """Give the inputs that the model takes of a batch; None where it takes no such batch."""
    shape = tokens_of(batch)[1].shape
    filled = {each.name: FILLED[each.name](shape) for each in inputs if each.name in FILLED}
    given = {**filled, **batch}
    if {each.name for each in inputs} != given.keys():
        return None
    for each in inputs:
        sizes = zip(each.shape, given[each.name].shape, strict=False)
        if len(each.shape) != given[each.name].ndim or any(isinstance(a, int) and a != b for a, b in sizes):
            return None
    return {each.name: np.asarray(given[each.name], DTYPES.get(each.type)) for each in inputs}
