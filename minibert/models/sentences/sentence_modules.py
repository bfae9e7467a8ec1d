"""What the modules of a folder of sentence-transformers compute, and in which order they may stand.

A name is compared with those that are known here; nothing that a file names is ever imported. What a file asks for and
this package does not compute is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.activations import leaky_relu
from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.sentences import normalized
from minibert.errors import CheckpointError
from minibert.families.parts.activations import LEARNED, TORCH, torch_class
from minibert.families.parts.bound_blocks import steady
from minibert.files.tokenizer_files import Find

from .folder import (
    FAMILY,
    MODULES,
    MULTI,
    PAIRS,
    RERANKER,
    SPARSE,
    STATIC_MODULE,
    TRANSFORMERS,
    FolderFiles,
    Module,
    kind_of,
    listed_modules,
)
from .router import ROUTER, Router, read_router

# the keys of each module's config.json. Any other would be of a setting that is not computed here
IN_AND_OUT = ("module_input_name", "module_output_name")
KEYS: Mapping[str, tuple[str, ...]] = {
    "Dense": ("in_features", "out_features", "bias", "activation_function", "use_residual", *IN_AND_OUT),
    "LayerNorm": ("dimension",),
    "Dropout": ("dropout",),
    "Normalize": IN_AND_OUT,
}
MODULES_OF: Mapping[str, tuple[str, ...]] = {
    "SentenceTransformer": ("Transformer", "Pooling", STATIC_MODULE, *KEYS),
    PAIRS: ("Transformer",),
    SPARSE: (*TRANSFORMERS, "SpladePooling"),
    MULTI: ("Transformer", "Dense", "Normalize", "MultiVectorMask", "HierarchicalTokenPooling"),
}  # what a folder is saved as -> the modules that are computed here
INSTEAD = {
    "LogitScore": f"; take a reranker with a head of classes, such as {RERANKER}, for one that answers yes or no",
    ROUTER: "; save one of its routes as a model: model[0].sub_modules has the modules of each",
}  # of modules that are not computed
OTHERS = ("pylate.models.Dense.Dense",)  # classes of another library that are the same
SENTENCES, TOKENS = "sentence_embedding", "token_embeddings"  # what a module works on
BEGINNINGS = (["Transformer", "Pooling"], [STATIC_MODULE])  # of a SentenceTransformer; a static model pools by itself
SLOPE = "activation_function.weight"  # PReLU's, one number
LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's own, which no folder changes


def transformer_folder(find: Find, where: str) -> str:
    """Say in which subfolder of a model its transformer, or its static rows are: "" for the top folder, as without
    modules.json.

    Raises CheckpointError that names the first module that is not computed here.
    """
    modules = read_modules(find, where)
    if modules is None:
        return ""
    kind = kind_of(FolderFiles(find, "", where))
    wrong = _fault(modules, kind)
    if wrong:
        alone = find("config.json") is not None and kind == "SentenceTransformer"
        advice = f"; a copy of the folder without {MODULES} gives the tokens' vectors, and their mean" if alone else ""
        raise CheckpointError(f"{where}: {MODULES} {wrong}{advice}")
    return modules[0].path


def read_modules(find: Find, where: str) -> list[Module] | None:
    """Give the modules in their order, of a SparseEncoder's Router those of documents; None without modules.json.

    Raises as `listed_modules` and `read_router`.
    """
    modules = listed_modules(find, where)
    router = router_of(modules, find, where)
    return router.model if router else modules


def router_of(modules: list[Module] | None, find: Find, where: str) -> Router | None:
    """Read the Router of a SparseEncoder; None where there is none. Raises as `read_router`."""
    if modules and [each.kind for each in modules] == [ROUTER] and kind_of(FolderFiles(find, "", where)) == SPARSE:
        return read_router(FolderFiles(find, modules[0].path, where))
    return None


def _fault(modules: list[Module], kind: str) -> str:
    """Say what keeps a list from being the modules of such a folder in their order."""
    known = MODULES_OF[kind]
    for module in modules:
        if module.kind not in known or not (module.type.startswith(FAMILY) or module.type in OTHERS):
            return (
                f"names {module.type!r}, but only {', '.join(known)} of sentence-transformers are computed here in a "
                f"{kind}{INSTEAD.get(module.kind, '')}"
            )
    kinds = [module.kind for module in modules]
    if kind == "SentenceTransformer":
        begins = next((some for some in BEGINNINGS if kinds[: len(some)] == some), [])
        right = bool(begins) and set(kinds[len(begins) :]) <= KEYS.keys()
        wanted = f"a Transformer, a Pooling, or a {STATIC_MODULE} in their place, then any number of {', '.join(KEYS)}"
    elif kind == PAIRS:
        right, wanted = kinds == ["Transformer"], "a Transformer alone"
    elif kind == MULTI:
        right = kinds[:1] == ["Transformer"] and "Transformer" not in kinds[1:]
        wanted = f"a Transformer, then any number of {', '.join(known[1:])}"
    else:
        right = len(kinds) == 2 and kinds[0] in known[:2] and kinds[1] == "SpladePooling"
        wanted = "a Transformer and a SpladePooling"
    return "" if right else f"lists {', '.join(kinds) or 'nothing'}; expected {wanted}"


# -- what they compute -------------------------------------------------------------------------------------------


After = Callable[[Array], Array]


def read_steps(
    modules: list[Module],
    find: Find,
    dim: int,
    dtype: np.dtype[Any] | None,
    where: str,
    works_on: str = SENTENCES,
) -> tuple[tuple[After, ...], int]:
    """Read the modules behind the pooling, one after another: what each does, and the width after the last.

    works_on: TOKENS where there is no pooling. A Dense then need not say so.
    """
    steps = []
    for module in modules:
        files = FolderFiles(find, module.path, where)
        settings = files.object("config.json")
        files.check_keys(settings, KEYS[module.kind])
        for name in IN_AND_OUT:
            usual = SENTENCES if module.kind == "Normalize" and name == IN_AND_OUT[0] else works_on
            if (settings.get(name) or usual) != works_on:
                raise files.refuse(
                    f"{module.kind} has {name!r} {settings.get(name)!r}, but here it works on {works_on!r} alone"
                )
        step, dim = STEPS[module.kind](settings, files, dim, dtype)
        steps.append(step)
    return tuple(steps), dim


def _layer_norm(
    settings: dict[str, Any], files: FolderFiles, dim: int, dtype: np.dtype[Any] | None
) -> tuple[After, int]:
    if settings.get("dimension") != dim:
        raise files.refuse(
            f"LayerNorm is for {settings.get('dimension')!r} numbers, but {dim} come out of the module before"
        )
    weight, bias = files.tensors({"norm.weight": (dim,), "norm.bias": (dim,)}, dtype)
    return partial(layer_norm, weight=weight, bias=bias, eps=LAYER_NORM_EPS), dim


def _dense(settings: dict[str, Any], files: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    """`y = f(x @ weight^T + bias)`, plus x or x @ residual^T where the folder says so."""
    width, out = settings.get("in_features"), settings.get("out_features")
    if width != dim or type(out) is not int or out < 1:
        raise files.refuse(f"Dense maps {width!r} numbers to {out!r}, but {dim} come out of the module before")
    named = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    learned = torch_class(named) == LEARNED
    activation = TORCH["Identity"] if learned else TORCH.get(torch_class(named))
    if activation is None:
        known = ", ".join((*TORCH, LEARNED))
        raise files.refuse(f"activation_function {named!r} is not one of torch.nn's {known}")
    keeps = files.flag(settings, "use_residual", False)
    shapes: dict[str, tuple[int, ...] | None] = {"linear.weight": (out, dim)}
    if files.flag(settings, "bias", True):
        shapes["linear.bias"] = (out,)
    if keeps and dim != out:
        shapes["residual.weight"] = (out, dim)
    if learned:
        shapes[SLOPE] = (1,)
    found = dict(zip(shapes, files.tensors(shapes, dtype), strict=True))
    bias, residual = found.get("linear.bias"), found.get("residual.weight")
    if learned and dtype is not None:
        activation = partial(leaky_relu, slope=found[SLOPE][0])
    made = partial(dense, weight=found["linear.weight"], bias=bias, residual=residual)
    return partial(made, activation=activation, keeps=keeps), out


def dense(x: Array, weight: Array, bias: Array | None, residual: Array | None, activation: After, keeps: bool) -> Array:
    """f(x @ weight^T + bias), and what it keeps of x."""
    y = activation(steady(x, weight, bias))
    if keeps:
        y = y + (x if residual is None else steady(x, residual))
    return y


STEPS: Mapping[str, Callable[[dict[str, Any], FolderFiles, int, np.dtype[Any] | None], tuple[After, int]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Dropout": lambda settings, files, dim, dtype: (TORCH["Identity"], dim),  # changes nothing outside training
    "Normalize": lambda settings, files, dim, dtype: (normalized, dim),
}
"""Module -> a function of its settings, its files, the width before it and the dtype: the step and the width after."""
