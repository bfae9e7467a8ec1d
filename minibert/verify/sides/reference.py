"""The reference itself, run beside a subject: transformers on torch, watched through hooks.

Needs both installed; nothing else in this package does.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.parts.config import thawed
from minibert.families.parts.steps import Norm, Positions
from minibert.families.rows import OLDER
from minibert.hub.repository import full_name
from minibert.models.open.load import is_folder
from minibert.verify.judge.input_layer import Subject

from .modules import Paths, Seen


def installed() -> bool:
    """Whether torch and transformers can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


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


class Reference:
    """The reference's model of a checkpoint, in float32 on the CPU, and a way to trace it like a subject.

    A trace has the subject's keys. What no module of the reference gives is left out: the word rows times sqrt(dim) of
    Marian, Pegasus and Granite, which their sum shows. The trace of an input layer ends with what enters the
    reference's first block. Of a whole encoder attention is eager, and scores are the input of the reference's softmax,
    with its mask added; compare them only where nothing is masked.
    """

    def __init__(
        self, subject: Subject, where: str, revision: str | None = None, local_files_only: bool = False
    ) -> None:
        self._subject, self._layer = subject, subject.layer
        self._where = str(Path(where).expanduser()) if is_folder(where) else full_name(where)
        # no code and no pickle of a checkpoint is ever run (`use_safetensors`)
        self._options = {"revision": revision, "local_files_only": local_files_only, "trust_remote_code": False}
        self.name = f"transformers {version('transformers')} on torch {version('torch')}"
        self._model = self._load()
        self._paths = Paths(subject, (path for path, _ in self._model.named_modules()), type(self._model).__name__)
        self._caching: Any = None  # the same model as a decoder, loaded only where the first one keeps no cache

    def _load(self, **changes: Any) -> Any:
        import torch
        import transformers

        config = {key: thawed(value) for key, value in self._layer.config.items()}
        if "ntk" in (config.get("rope_scaling") or {}).values():
            raise error_of(
                ValueError,
                f"{self._where} scales its rotary frequencies by 'ntk', which transformers does not compute, so it "
                "is no reference here; name a file with a port's values with ",
                Option("against"),
            )
        if known := OLDER.get(config.pop("model_type", "")):  # a name that it does not know
            changes["config"] = transformers.AutoConfig.for_model(known, **config)
        if self._subject.scores:
            changes["attn_implementation"] = "eager"
        with _quiet():
            head = self._subject.head
            loaded = getattr(transformers, CLASSES[head.name] if head else "AutoModel").from_pretrained(
                self._where, dtype=torch.float32, use_safetensors=True, **self._options, **changes
            )
        return loaded.eval()

    def takes(self, inputs: Mapping[str, Array]) -> bool:
        """Whether the reference's module has arguments of these names."""
        known = inspect.signature(self._module(self._model).forward).parameters
        return all(name in known or name == "past_length" for name in inputs)

    def _part(self, model: Any) -> Any:
        """The module where the layer's paths begin: the model itself, or the text model inside a larger one."""
        return model.get_submodule(self._paths.prefix.rstrip("."))

    def _module(self, model: Any) -> Any:
        """The module to call: the part, or its encoder or decoder."""
        part = self._part(model)
        return getattr(part, self._layer.side) if self._layer.family.sides != ("encoder",) else part

    def tokenize(self, text: str) -> Array | str:
        """The reference's ids of a text, (1, seq), or why its tokenizer cannot be opened."""
        import transformers

        try:
            with _quiet():
                tokenizer = transformers.AutoTokenizer.from_pretrained(self._where, **self._options)
        except (OSError, ValueError, ImportError) as error:
            return f"the reference's tokenizer cannot be opened: {str(error).splitlines()[0]}"
        return np.array([tokenizer(text)["input_ids"]], np.int64)

    def trace(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; `past_length` tokens are run before it, so that a cache holds them."""
        import torch

        dtype = next(self._model.parameters()).dtype  # of rows that are passed, too: a norm takes no other
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        named = {name: x.to(dtype) if x.is_floating_point() and "embeds" in name else x for name, x in tensors.items()}
        past_length = int(named.pop("past_length", torch.tensor(0)).item())
        model = self._model
        with torch.no_grad():
            if past_length:
                model, named["past_key_values"] = self._cache(named, past_length)
            return self._paths.trace(self._watch(model, named, self._subject.reaches_head(inputs)), inputs)

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

    def _watch(self, model: Any, named: Mapping[str, Any], whole: bool) -> Seen:
        """Call the model with a hook on every module that has a key of a trace; `whole`: with its head."""
        import torch

        part, subject, known = self._part(model), self._subject, dict[str, Array]()
        leaving, entering = defaultdict[str, list[Array | None]](list), defaultdict[str, list[Array | None]](list)
        results, scores = list[Any](), list[Array]()
        step = next((step for step, _ in self._layer.steps if isinstance(step, Positions)), None)
        table = None if step is None else part.get_submodule(step.path).weight

        def leave(path: str, _module: Any, _args: Any, output: Any) -> None:
            leaving[path].append(_array(output))

        def enter(path: str, _module: Any, args: Any, named: Any) -> None:
            entering[path].append(_array(args[0] if args else named["hidden_states"]))

        def called(function: Any, args: Any) -> None:
            # Whisper indexes its table, the other models look rows up
            place = {torch.nn.functional.embedding: 1, torch.Tensor.__getitem__: 0}.get(function)
            if step is not None and place is not None and args[place] is table and torch.is_tensor(args[1 - place]):
                known["position_ids"] = args[1 - place].numpy() - step.extra
            if function is torch.nn.functional.softmax:
                scores.append(_array(args[0]))

        with ExitStack() as hooks:
            find = model.get_submodule
            on = [self._module(model).register_forward_hook(lambda _module, _args, output: results.append(output))]
            on += [find(path).register_forward_hook(partial(leave, path)) for path in self._paths.leaving]
            on += [find(path).register_forward_pre_hook(partial(enter, path), with_kwargs=True)
                   for path in self._paths.entering]  # fmt: skip
            for hook in on:
                hooks.callback(hook.remove)
            hooks.enter_context(_watching(called, wide=next(model.parameters()).dtype == torch.float64))
            more = {"output_attentions": True} if subject.scores else {}
            if subject.head is not None and whole:
                with _quiet():
                    made = model(**named, **more, output_hidden_states=True)
                both = [made.start_logits, made.end_logits] if "start_logits" in made else []
                known["logits"] = np.stack([*map(_array, both)], axis=-1) if both else _array(made.logits)
                if subject.head.takes == "last":  # its map is computed for every token, and taken afterwards
                    known[subject.head.path] = known["logits"]
            else:
                self._module(model)(**named, **more, output_hidden_states=True)
        states = results[-1].hidden_states and (*results[-1].hidden_states[:-1], results[-1].last_hidden_state)
        if not states:
            raise ValueError(f"{self._where} has no block, so that nothing shows what enters one; give it a block")
        steps = [step for step, _ in self._layer.steps]
        last = steps[-1].path if any(isinstance(step, Norm) for step in steps) else "sum"
        known[last] = _array(states[0])  # whatever the modules gave, it is this that enters the first block
        if subject.scores:
            known |= dict(zip(subject.scores, scores, strict=True))
            for name, arrays in (("hidden_states", states), ("attentions", results[-1].attentions)):
                known |= {f"{name}.{i}": _array(array) for i, array in enumerate(arrays)}
        if subject.pooler is not None and results[-1].get("pooler_output") is not None:
            known["pooler"] = _array(results[-1].pooler_output)
        return Seen(leaving, entering, known)


def _array(x: Any) -> Array:
    array: Array = x.detach().clone().numpy()
    return array


@contextmanager
def _watching(called: Callable[[Any, Any], None], wide: bool) -> Iterator[None]:
    """Be told of every call of a function of torch, with its arguments.

    `wide`: what asks for float32 is given float64. Llama's kin compute norms, rotation and softmax in float32 whatever
    the weights are, and a mask of float64's lowest number is minus infinity there: padding would be NaN.
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
