"""The reference itself, run beside a subject, and the names of its modules' outputs and inputs in a trace.

transformers on torch is observed through hooks; both must be installed. A number that no module shows is not compared:
shapes never decide what an array is.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.parts.block_names import by_module, module_path
from minibert.families.parts.config import thawed
from minibert.families.parts.steps import Norm, Positions
from minibert.families.rows import OLDER
from minibert.hub.repository import full_name
from minibert.models.open.load import is_folder

from .counterparts import Counterpart, Sides
from .report import ERROR_SHARE, Comparison, Shares
from .subjects import Subject, tokens_of
from .traces import Traces

Calls = Mapping[str, Sequence["Array | None"]]  # path of a module -> one array per call, None if it is not kept

# the reference's class for each head
CLASSES = {
    "masked_word": "AutoModelForMaskedLM",
    "next_word": "AutoModelForCausalLM",
    "classes": "AutoModelForSequenceClassification",
    "token_classes": "AutoModelForTokenClassification",
    "next_sentence": "AutoModelForNextSentencePrediction",
    "replaced_token": "AutoModelForPreTraining",
    "answer": "AutoModelForQuestionAnswering",
}


def installed() -> bool:
    """Whether torch and transformers can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


class Paths:
    """The keys of a trace that leave or enter each module, by the paths that another program has for them.

    Raises ValueError if no module is this model's first.
    """

    def __init__(self, subject: Subject, modules: Iterable[str], name: str) -> None:
        there, stack = dict.fromkeys(filter(None, modules)), subject.model.stack if subject.has_places else None
        self._transposed = {*stack.transposed_in_reference} if stack else set()
        self._positions = {step.path for step, _ in subject.layer.steps if isinstance(step, Positions)}
        steps = [step for step, _ in subject.layer.steps]
        modules_of_layer = [step.path for step, bound in subject.layer.steps if callable(bound)]
        first, usual = steps[0].path, ("", *subject.layer.family.prefixes)
        prefixes = [*dict.fromkeys(path[: -len(first)] for path in there if f".{path}".endswith(f".{first}"))]
        chosen = [prefix for prefix in usual if prefix in prefixes] if len(prefixes) > 1 else prefixes
        if len(chosen) != 1:
            shown = ", ".join([*there][:4]) or "none"
            raise ValueError(f"{name}: expected a module {first}, as this model has it; found {len(prefixes)} among "
                             f"{shown}")  # fmt: skip
        self.prefix = prefix = chosen[0]  # the other program has it before this model's paths
        norms = {step.path: "sum" for step in steps if isinstance(step, Norm)}
        outputs_of = by_module({key: key for key in (*modules_of_layer, *subject.module_outputs)})
        for path, keys in outputs_of.items():  # the word table's second call looks up the token types
            keys += [key for key in (f"{path} (types)",) if key in subject.allowed]
        self.module_outputs = {prefix + path: keys for path, keys in outputs_of.items()}
        inputs_of = by_module({**norms, **(stack.module_inputs if stack else {})})
        self.module_inputs = {prefix + path: keys for path, keys in inputs_of.items()}
        if (head := subject.head) is not None:  # its pooler is in the base model
            paths = [*(path for path, _ in head.works), *([] if head.pooling == "last" else [head.path])]
            for path, after in pairwise([*paths, ""]):
                named = {name: [path] for name in (path, prefix + path) if name in there}
                self.module_outputs |= named
                if not named:  # an activation that is not a module enters the next one
                    self.module_inputs |= {name: [path] for name in (after, prefix + after) if name in there}
        # the softmax is in the module of the scores; their key is that module's path and a name
        scores = {key.rpartition(".")[0]: (key, f"attentions.{i}") for i, key in enumerate(subject.scores)}
        self.softmax: dict[str, list[tuple[str, str]]] = {}
        for key, names in scores.items():
            self.softmax.setdefault(prefix + module_path(key), []).append(names)

    def trace(
        self, outputs_of: Calls, inputs_of: Calls, known: Mapping[str, Array], batch: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return one batch's intermediates under our names, from what left and entered modules, and `known` ones."""
        arrays = dict(_paired(self.module_outputs, outputs_of)) | dict(_paired(self.module_inputs, inputs_of))
        shape = tokens_of(batch)[1].shape
        return {key: self._as_traced(key, x, shape) for key, x in arrays.items()} | dict(known)

    def _as_traced(self, key: str, x: Array, shape: tuple[int, ...]) -> Array:
        """Return an output of transformers with its axes in the order of a trace; shape is (batch, seq)."""
        if x.ndim == 3 and x.shape[:2] == shape[::-1] and shape[0] != shape[1]:
            x = x.swapaxes(0, 1)  # XLNet computes with (seq, batch)
        if key in self._transposed:
            x = x.swapaxes(1, 2)
        return x[None] if x.ndim == 2 and key in self._positions else x  # Marian and Pegasus: one row for all texts


def _paired(keys: Mapping[str, Sequence[str]], calls: Calls) -> Iterator[tuple[str, Array]]:
    """Pair the keys of each module with its calls, in order; a trace has no key for further calls."""
    for path, names in keys.items():
        for key, x in zip(names, calls.get(path, ()), strict=False):
            if x is not None:
                yield key, x


class Reference(Counterpart):
    """The reference's model of a checkpoint, in float32 on the CPU, traced like a subject.

    A trace has the subject's keys. Intermediates that no module of the reference returns are left out, such as the
    scaled word rows of Marian, Pegasus and Granite; an error there appears in the sum. The trace of an input layer
    ends with the input of the reference's first block. In a whole encoder attention is eager, and scores are the input
    of the reference's softmax, with its mask added; compare them only at pairs that are not masked.
    """

    whose = "reference"
    shares = Shares(ours=ERROR_SHARE)  # both are compared with the reference's own float64

    def __init__(
        self, subject: Subject, where: str, revision: str | None = None, local_files_only: bool = False
    ) -> None:
        self._subject, self._layer = subject, subject.layer
        self._where = str(Path(where).expanduser()) if is_folder(where) else full_name(where)
        # a checkpoint's code and pickles are never run (`use_safetensors`)
        self._options = {"revision": revision, "local_files_only": local_files_only, "trust_remote_code": False}
        self.exact = "the reference" if subject.has_places else "the same layer"
        eager = ", eager attention" if subject.has_places else ""
        versions = f"transformers {version('transformers')} on torch {version('torch')}"
        self.about = (f"compared live with {versions}{eager}, on the CPU in float32",)
        self._model = self._load()
        self._paths = Paths(subject, (path for path, _ in self._model.named_modules()), type(self._model).__name__)
        self._caching: Any = None  # the same model as a decoder, loaded only if the first keeps no cache

    def _load(self, **changes: Any) -> Any:
        import torch
        import transformers

        config = {key: thawed(value) for key, value in self._layer.config.items()}
        why, flash = "", any(tensor.name.endswith("emb_ln.weight") for tensor in self._layer.tensors)
        if "ntk" in (config.get("rope_scaling") or {}).values():
            why = "scales its rotary frequencies by 'ntk', which transformers does not compute"
        elif flash and self._layer.family.model_type == "xlm-roberta":
            why = "has the tensor names of a port for flash attention, which transformers does not read"
        if why:
            either = f"{self._where} {why}; name a file with a port's values with "
            raise error_of(ValueError, either, Option("against"))
        if known := OLDER.get(config.pop("model_type", "")):  # transformers does not know this name
            changes["config"] = transformers.AutoConfig.for_model(known, **config)
        if self._subject.scores:
            changes["attn_implementation"] = "eager"
        with _quiet():
            head = self._subject.head
            loaded = getattr(transformers, CLASSES[head.name] if head else "AutoModel").from_pretrained(
                self._where, dtype=torch.float32, use_safetensors=True, **self._options, **changes
            )
        return loaded.eval()

    def traces(self, report: Comparison, subject: Subject, batches: Traces, texts: Sequence[str]) -> Sides:
        arguments = {*inspect.signature(self._module(self._model).forward).parameters, "past_length"}
        inputs = {kind: batch for kind, batch in batches.items() if batch.keys() <= arguments}
        if left := [kind for kind in batches if kind not in inputs]:
            report.say(f"left out, since the reference's module has no such argument: {', '.join(left)}")
        theirs = {kind: self.trace(batch) for kind, batch in inputs.items()}
        for i, text in enumerate(texts, 1):
            ids = self.tokenize(text)
            if isinstance(ids, str):
                report.say(f"ids of text {i} not compared: {ids}")
            else:
                theirs[f"text {i}"]["input_ids"] = ids
        return inputs, subject.traces(inputs, theirs), theirs

    def in_float64(self, subject: Subject, batch: Traces, theirs: Traces) -> Traces:
        if not subject.has_places:
            return super().in_float64(subject, batch, theirs)
        self.double()
        return {kind: self.trace(inputs) for kind, inputs in batch.items()}

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        yield from super().not_compared(here, there, noun)
        if hidden := [key for key in here if key not in there]:
            yield f"not compared, since the reference does not show it: {', '.join(hidden)}"

    def _part(self, model: Any) -> Any:
        """Return the module at which the layer's paths begin: the model, or the text model inside a larger one."""
        return model.get_submodule(self._paths.prefix.rstrip("."))

    def _module(self, model: Any) -> Any:
        """Return the module to call: the part, or its encoder or decoder."""
        part = self._part(model)
        return getattr(part, self._layer.side) if self._layer.family.sides != ("encoder",) else part

    def tokenize(self, text: str) -> Array | str:
        """Return the reference's ids of a text, (1, seq), or why its tokenizer cannot be opened."""
        import transformers

        try:
            with _quiet():
                tokenizer = transformers.AutoTokenizer.from_pretrained(self._where, **self._options)
        except (OSError, ValueError, ImportError) as error:
            return f"the reference's tokenizer cannot be opened: {str(error).splitlines()[0]}"
        return np.array([tokenizer(text)["input_ids"]], np.int64)

    def trace(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; `past_length` tokens are run before it to fill the cache."""
        import torch

        dtype = next(self._model.parameters()).dtype  # inputs_embeds need it too: a norm takes no other
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        named = {name: x.to(dtype) if x.is_floating_point() and "embeds" in name else x for name, x in tensors.items()}
        past_length = int(named.pop("past_length", torch.tensor(0)).item())
        model = self._model
        with torch.no_grad():
            if past_length:
                model, named["past_key_values"] = self._cache(named, past_length)
            return self._paths.trace(*self._watch(model, named, self._subject.reaches_head(inputs)), inputs)

    def _cache(self, named: Mapping[str, Any], past_length: int) -> tuple[Any, Any]:
        import torch

        before = {"input_ids": torch.zeros((len(named["input_ids"]), past_length), dtype=torch.int64)}
        if "attention_mask" in named:
            before["attention_mask"] = named["attention_mask"][:, :past_length]
        cache = getattr(self._module(self._model)(**before, use_cache=True), "past_key_values", None)
        if cache is not None:
            return self._model, cache
        if self._caching is None:
            self._caching = self._load(is_decoder=True)
        return self._caching, self._module(self._caching)(**before, use_cache=True).past_key_values

    def double(self) -> None:
        """Compute in float64 from now on."""
        self._model = self._model.double()

    def _watch(self, model: Any, named: Mapping[str, Any], whole: bool) -> tuple[Calls, Calls, dict[str, Array]]:
        """Call the model, with its head if `whole`, and record what leaves and enters modules that a trace names."""
        import torch

        part, subject, known = self._part(model), self._subject, dict[str, Array]()
        outputs_of, inputs_of = defaultdict[str, list[Array | None]](list), defaultdict[str, list[Array | None]](list)
        results, scores = list[Any](), list[Array]()
        step = next((step for step, _ in self._layer.steps if isinstance(step, Positions)), None)
        table = None if step is None else part.get_submodule(step.path).weight

        def leave(path: str, _module: Any, _args: Any, output: Any) -> None:
            outputs_of[path].append(_array(output))

        def enter(path: str, _module: Any, args: Any, named: Any) -> None:
            inputs_of[path].append(_array(args[0] if args else named["hidden_states"]))

        def called(function: Any, args: Any) -> None:
            # Whisper indexes its table, the other models use embedding()
            place = {torch.nn.functional.embedding: 1, torch.Tensor.__getitem__: 0}.get(function)
            if step is not None and place is not None and args[place] is table and torch.is_tensor(args[1 - place]):
                known["position_ids"] = args[1 - place].numpy() - step.extra
            if function is torch.nn.functional.softmax:
                scores.append(_array(args[0]))

        with ExitStack() as hooks:
            find = model.get_submodule
            on = [self._module(model).register_forward_hook(lambda _module, _args, output: results.append(output))]
            on += [find(path).register_forward_hook(partial(leave, path)) for path in self._paths.module_outputs]
            on += [find(path).register_forward_pre_hook(partial(enter, path), with_kwargs=True)
                   for path in self._paths.module_inputs]  # fmt: skip
            for hook in on:
                hooks.callback(hook.remove)
            hooks.enter_context(_watching(called, wide=next(model.parameters()).dtype == torch.float64))
            more = {"output_attentions": True} if subject.scores else {}
            if subject.head is not None and whole:
                with _quiet():
                    output = model(**named, **more, output_hidden_states=True)
                both = [output.start_logits, output.end_logits] if "start_logits" in output else []
                known["logits"] = np.stack([*map(_array, both)], axis=-1) if both else _array(output.logits)
                if subject.head.pooling == "last":  # its map is applied to every token, then one token is selected
                    known[subject.head.path] = known["logits"]
            else:
                self._module(model)(**named, **more, output_hidden_states=True)
        states = results[-1].hidden_states and (*results[-1].hidden_states[:-1], results[-1].last_hidden_state)
        if not states:
            raise ValueError(f"{self._where} has no block, so that nothing shows what enters one; give it a block")
        steps = [step for step, _ in self._layer.steps]
        last = steps[-1].path if any(isinstance(step, Norm) for step in steps) else "sum"
        known[last] = _array(states[0])  # this enters the first block, even if the modules returned other rows
        if subject.scores:
            known |= dict(zip(subject.scores, scores, strict=True))
            for name, arrays in (("hidden_states", states), ("attentions", results[-1].attentions)):
                known |= {f"{name}.{i}": _array(array) for i, array in enumerate(arrays)}
        if subject.pooler is not None and results[-1].get("pooler_output") is not None:
            known["pooler"] = _array(results[-1].pooler_output)
        return outputs_of, inputs_of, known


def _array(x: Any) -> Array:
    array: Array = x.detach().clone().numpy()
    return array


@contextmanager
def _watching(called: Callable[[Any, Any], None], wide: bool) -> Iterator[None]:
    """Call `called` before every function of torch, with its arguments.

    wide: a function that requests float32 gets float64. Models like Llama compute norms, rotation and softmax in
    float32 whatever the weights are, and there a mask of float64's lowest number is minus infinity: padding would be
    NaN.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def converted(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    class Watch(TorchFunctionMode):  # type: ignore[misc]  # torch's types are not read
        def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
            called(function, args)
            named = named or {}
            if wide:
                function = torch.Tensor.double if function is torch.Tensor.float else function
                args, named = tuple(map(converted, args)), {name: converted(value) for name, value in named.items()}
            return function(*args, **named)

    with Watch():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' progress bars, and its messages about heads that are not loaded."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
