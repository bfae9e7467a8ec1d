"""Arrays of a port under the names of its modules, as transformers' debugger writes them or an ONNX model has them.

`torch.onnx.export` writes each node's module into its metadata; onnxruntime does not show that, so the package `onnx`
reads it: whoever marks intermediates as outputs has that package.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array

from .counterparts import Port
from .reference import Paths
from .subjects import Subject, tokens_of
from .traces import Traces, opened, read_arrays

ONNX = ".onnx"


# -- a debugger's folder -----------------------------------------------------------------------------------------

TREE = "_debug_tree_FULL_TENSORS.json"
KIND = "debugged"  # the name of its one batch
ASKED = "do_prune_layers=False, use_repr=False"


class ModuleCall(NamedTuple):
    """One call of a module: its path, its arguments, and its first output."""

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    output: Any


class DebugTree(Port):
    """A folder of transformers' `model_addition_debugger_context`: one forward call, module by module.

    The context keeps tensors only with `do_prune_layers=False, use_repr=False`. If a module is called twice, its second
    call overwrites the first. Raises ValueError for printed tensors, and if the middle layers were left out.
    """

    whole = False

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder, path = folder, next(iter(sorted(folder.glob(f"*{TREE}"))), None)
        if path is None:
            debugger = "the folder that model_addition_debugger_context of transformers writes"
            raise ValueError(f"{folder}: expected {debugger}, with *{TREE}; write arrays into one file by numpy.savez")
        try:
            self._calls = list(_calls(json.loads(opened(path).read_text("utf-8"))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: expected the tree of modules as the debugger writes it ({error!r})") from None

    def read(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        whole, *rest = self._calls
        calls = [call._replace(path=call.path.removeprefix(f"{whole.path}.")) for call in rest]
        arguments = {**whole.kwargs, **dict(zip(("input_ids",), whole.args, strict=False))}
        arrays = {name: self._array(x) for name, x in arguments.items() if name != "labels"}
        inputs = {name: x for name, x in arrays.items() if x is not None}
        if not {"input_ids", "inputs_embeds"} & set(inputs):
            raise ValueError(f"{self.name} has no input_ids or inputs_embeds of the whole model, only {list(inputs)}")
        paths = Paths(subject, [call.path for call in calls], self.name)
        shown = {subject.place(key) for call in calls for key in paths.module_outputs.get(call.path, ())}
        places = dict.fromkeys(subject.place(key) for key in subject.module_outputs)
        if gone := [place for place in places if place not in shown]:
            raise ValueError(f"{self.name} has no module of {gone[0]}, a middle layer; write it with {ASKED}")
        outputs_of: dict[str, list[Array | None]] = {}
        inputs_of: dict[str, list[Array | None]] = {}
        for call in calls:
            into = _first(call.args) or call.kwargs.get("hidden_states")
            both = (outputs_of, paths.module_outputs, call.output), (inputs_of, paths.module_inputs, into)
            for arrays_of, wanted, x in both:
                if call.path in wanted:
                    arrays_of[call.path] = [*[None] * len(arrays_of.get(call.path, ())), self._array(x)]
        return {KIND: inputs}, {KIND: paths.trace(outputs_of, inputs_of, self._known(subject, whole.path), inputs)}

    def _known(self, subject: Subject, model: str) -> dict[str, Array]:
        """Read the whole model's outputs, which the tree does not name; the last hidden state is the normed one."""
        depth, outputs = len(subject.scores), f"{model}_outputs_"
        both = (self._folder / f"{outputs}encoder_last_hidden_state.safetensors").is_file()
        side = f"{subject.layer.side}_" if both else ""
        names = {f"{name}.{i}": f"{side}{name}_{i}" for name in ("hidden_states", "attentions") for i in range(depth)}
        names |= {f"hidden_states.{depth}": f"{side.removeprefix('decoder_')}last_hidden_state"} if depth else {}
        names |= {"logits": "logits"} if subject.head is not None else {}
        files = {key: self._folder / f"{outputs}{name}.safetensors" for key, name in names.items()}
        return {key: _tensor(path) for key, path in files.items() if path.is_file()}

    def _array(self, x: Any) -> Array | None:
        """Read a tensor of the tree; None for anything else. Raises ValueError for a printed tensor."""
        if not isinstance(x, dict) or "value" not in x:
            return None
        if not isinstance(x["value"], str):
            fault = f"{self.name} has printed tensors and no middle layers, the debugger's default"
            raise ValueError(f"{fault}; write it by model_addition_debugger_context(model, path, {ASKED})")
        return _tensor(self._folder / Path(x["value"]).name)


def _tensor(path: Path) -> Array:
    arrays = read_arrays(path)
    if "data" not in arrays:
        raise ValueError(f"{path}: expected one tensor called 'data', as the debugger writes it")
    return arrays["data"]


def _calls(tree: Any) -> Iterator[ModuleCall]:
    """List the calls of a module and of all below it, in their order. Raises TypeError for another form."""
    arguments: dict[str, Any] = {"args": [], "kwargs": {}} | dict(tree.get("inputs") or {})
    call = ModuleCall(str(tree["module_path"]), arguments["args"], arguments["kwargs"], _first(tree.get("outputs")))
    if not isinstance(call.args, list) or not isinstance(call.kwargs, dict):
        raise TypeError(f"expected a list of args and a dict of kwargs for {call.path!r}")
    yield call
    for child in tree.get("children", ()):
        yield from _calls(child)


def _first(outputs: Any) -> Any:
    """Return a module's output, the first of several."""
    return outputs[0] if isinstance(outputs, list) and outputs else outputs


# -- an ONNX model -----------------------------------------------------------------------------------------------

SCOPES = "pkg.torch.onnx.name_scopes"
NEEDED = {"onnx": "pip install 'onnx>=1.23'", "onnxruntime": "pip install 'onnxruntime>=1.31'"}
FILLED = {"attention_mask": np.ones, "token_type_ids": np.zeros}  # if a batch of ours has none
DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}


class Node(NamedTuple):
    """A node of the graph: its kind, its inputs and outputs, and the path of its module, None if the file has none."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    path: str | None


class OnnxModel(Port):
    """An ONNX model whose intermediates are outputs, computed by onnxruntime from our own batches.

    Raises ImportError if onnx or onnxruntime is not installed.
    """

    whole = False

    def __init__(self, path: Path) -> None:
        super().__init__(str(opened(path)))
        for name, remedy in NEEDED.items():
            if importlib.util.find_spec(name) is None:
                raise ImportError(f"{path}: an ONNX model needs {name} here: {remedy}")

    def read(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        import onnxruntime

        nodes = self._nodes()
        modules = list(dict.fromkeys(node.path for node in nodes if node.path))
        if not modules:
            raise ValueError(f"{self.name}: no node has {SCOPES}; export it by torch.onnx.export(..., dynamo=True)")
        paths = Paths(subject, modules, self.name)
        outputs_of = {path: _module_outputs(nodes, path) for path in paths.module_outputs}
        inputs_of = {path: _module_inputs(nodes, path) for path in paths.module_inputs}
        softmax = {key: value for path, keys in paths.softmax.items() for key, value in _softmax(nodes, path, keys)}
        wanted = {name for names in (*outputs_of.values(), *inputs_of.values()) for name in names} | {*softmax.values()}
        with self._computing():
            session = onnxruntime.InferenceSession(self.name, providers=["CPUExecutionProvider"])
        marked = [output.name for output in session.get_outputs()]
        if not (shown := [name for name in marked if name in wanted]):
            raise ValueError(f"{self.name}: no output of it is a module's; mark all intermediates as outputs")
        self.lines = [f"{len(shown)} of its {len(marked)} outputs are intermediates of a trace"]
        inputs, traces, left = {}, {}, []
        for kind, batch in batches.items():
            feeds = _feeds(batch, session.get_inputs())
            if feeds is None:
                left.append(kind)
                continue
            with self._computing():
                outputs = dict(zip(shown, session.run(shown, feeds), strict=True))
            known = {key: outputs[name] for key, name in softmax.items() if name in outputs}
            inputs[kind] = batch
            traces[kind] = paths.trace(_arrays(outputs_of, outputs), _arrays(inputs_of, outputs), known, batch)
        if not traces:
            shapes = ", ".join(f"{x.name} {x.shape}" for x in session.get_inputs())
            raise ValueError(f"{self.name} takes {shapes}, and no batch has these; export it with dynamic shapes")
        self.lines += [f"left out, since the ONNX model has other inputs: {', '.join(left)}"] if left else []
        return inputs, traces

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Name the file if onnxruntime cannot open or compute it: missing weights, an unknown operator."""
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
        """Return the path of the innermost module: the scopes end with the node's own name."""
        for entry in node.metadata_props:
            if entry.key == SCOPES:
                try:
                    scopes = ast.literal_eval(entry.value)
                except (ValueError, SyntaxError, MemoryError, RecursionError) as error:  # too many brackets
                    kind = type(error).__name__
                    raise ValueError(f"{self.name}: {SCOPES} of node {node.name!r} is no list ({kind})") from None
                return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else None
        return None


def _is_in(node: Node, path: str) -> bool:
    return node.path is not None and f"{node.path}.".startswith(f"{path}.")


def _module_outputs(nodes: Sequence[Node], path: str) -> list[str]:
    """List the outputs of a module, call by call: values of its nodes that other nodes read, or no node reads."""
    within = [node for node in nodes if _is_in(node, path)]
    kept = {name for node in within for name in node.inputs}
    taken = {name for node in nodes if not _is_in(node, path) for name in node.inputs}
    return [node.outputs[0] for node in within if node.outputs[0] in taken or node.outputs[0] not in kept]


def _module_inputs(nodes: Sequence[Node], path: str) -> list[str]:
    """List the inputs of a module, call by call: values of other modules' nodes."""
    others = {name for node in nodes if node.path is not None and not _is_in(node, path) for name in node.outputs}
    return list(dict.fromkeys(name for node in nodes if _is_in(node, path) for name in node.inputs if name in others))


def _softmax(nodes: Sequence[Node], path: str, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Pair scores and attention weights with input and output of the softmax nodes in an attention, call by call."""
    inside = [node for node in nodes if node.kind == "Softmax" and node.path == path]
    if len(inside) == len(keys):
        for node, (scores, weights) in zip(inside, keys, strict=True):
            yield from ((scores, node.inputs[0]), (weights, node.outputs[0]))


def _arrays(names: Mapping[str, Sequence[str]], outputs: Mapping[str, Array]) -> dict[str, list[Array | None]]:
    """Select the computed arrays; integers are left out, since a graph also passes sizes."""
    arrays = {path: [outputs.get(name) for name in several] for path, several in names.items()}
    return {path: [x for x in several if x is None or x.dtype.kind == "f"] for path, several in arrays.items()}


def _feeds(batch: Mapping[str, Array], inputs: Collection[Any]) -> dict[str, Array] | None:
    """Select a batch's inputs for the model; None if the model takes no batch of this shape."""
    shape = tokens_of(batch)[1].shape
    arrays = {**{tensor.name: FILLED[tensor.name](shape) for tensor in inputs if tensor.name in FILLED}, **batch}
    if {tensor.name for tensor in inputs} != arrays.keys():
        return None
    for tensor in inputs:
        sizes = zip(tensor.shape, arrays[tensor.name].shape, strict=False)
        if len(tensor.shape) != arrays[tensor.name].ndim or any(isinstance(a, int) and a != b for a, b in sizes):
            return None
    return {tensor.name: np.asarray(arrays[tensor.name], DTYPES.get(tensor.type)) for tensor in inputs}
