"""The modules that a folder of sentence-transformers lists in modules.json, and what each of them computes.

A name is compared with those that are known here; nothing that a file names is ever imported. What a file asks for and
this package does not compute is refused by its name.
"""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.sentences import normalized
from minibert.errors import CheckpointError
from minibert.families.parts.activations import TORCH, torch_class
from minibert.families.parts.bound_blocks import steady
from minibert.families.parts.config import Config
from minibert.files.checkpoint import SINGLE, Checkpoint
from minibert.files.reading import FileName, read_object
from minibert.files.tokenizer_files import Find
from minibert.models.open.binder import TensorBinder

MODULES = "modules.json"
STATIC_MODULE = "StaticEmbedding"
SETTINGS = "config_sentence_transformers.json"
FAMILY = "sentence_transformers."  # every class of theirs, wherever it has stood over the years
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
    "CrossEncoder": ("Transformer",),
    "SparseEncoder": ("Transformer", "MLMTransformer", "SpladePooling"),
}  # what a folder is saved as -> the modules that are computed here
BEGINNINGS = (["Transformer", "Pooling"], [STATIC_MODULE])  # of a SentenceTransformer; a static model pools by itself
USES = {"SentenceTransformer": "encode", "CrossEncoder": "predict and rank", "SparseEncoder": "encode_sparse"}
LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's own, which no folder changes


class Module(NamedTuple):
    """One line of modules.json."""

    kind: str
    path: str
    type: str


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
    """Read modules.json: the modules in their order; None where there is none.

    Raises CheckpointError for a file that is no such list, and for a path that leaves the folder.
    """
    path = find(MODULES)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            entries = json.loads(file.read().decode("utf-8"))
        if not isinstance(entries, list):
            raise ValueError(f"found {type(entries).__name__}")
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("type"), str) or "path" not in entry:
                raise ValueError(f"found {entry!r:.200}")
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(
            f"{where}: {MODULES} must be a list of modules, each with a type and a path ({error}); fetch it again"
        ) from None
    modules = [Module(entry["type"].rpartition(".")[2], entry["path"], entry["type"]) for entry in entries]
    for module in modules:
        if not isinstance(module.path, str) or _leaves(module.path):
            raise CheckpointError(
                f"{where}: {MODULES} has the path {module.path!r}, expected a folder inside the model's own; "
                "a file that points elsewhere is not to be trusted"
            )
    return [module._replace(path=_plain(module.path)) for module in modules]


def _plain(path: str) -> str:
    """Write a folder as the Hub does: model2vec writes "." for the top one.

    >>> [_plain(path) for path in (".", "", "./1_Dense/")]
    ['', '', '1_Dense']
    """
    found = posixpath.normpath(path)
    return "" if found == "." else found


def _leaves(path: str) -> bool:
    r"""Whether a path is rooted or climbs, in the spelling of POSIX or of Windows.

    >>> [_leaves(path) for path in ("1_Pooling", "", "/etc", "a/../..", "C:x", r"\\server\x", r"a\..\b")]
    [False, False, True, True, True, True, True]
    """
    drive, rest = ntpath.splitdrive(path)
    parts = rest.replace("\\", "/").split("/")
    return bool(drive) or rest[:1] in ("/", "\\") or ".." in parts or "\0" in path


def kind_of(files: FolderFiles) -> str:
    """What a folder with modules.json was saved as."""
    kind = files.object(SETTINGS).get("model_type", "SentenceTransformer")
    if not isinstance(kind, str) or kind not in USES:
        raise files.refuse(f"{SETTINGS} says that this is a {kind}; those computed here are {', '.join(USES)}")
    return kind


def _fault(modules: list[Module], kind: str) -> str:
    """Say what keeps a list from being the modules of such a folder in their order."""
    known = MODULES_OF[kind]
    for module in modules:
        if module.kind not in known or not module.type.startswith(FAMILY):
            return (
                f"names {module.type!r}, but only {', '.join(known)} of sentence-transformers are computed here in a "
                f"{kind}"
            )
    kinds = [module.kind for module in modules]
    if kind == "SentenceTransformer":
        begins = next((some for some in BEGINNINGS if kinds[: len(some)] == some), [])
        right = bool(begins) and set(kinds[len(begins) :]) <= KEYS.keys()
        wanted = f"a Transformer, a Pooling, or a {STATIC_MODULE} in their place, then any number of {', '.join(KEYS)}"
    elif kind == "CrossEncoder":
        right, wanted = kinds == ["Transformer"], "a Transformer alone"
    else:
        right = len(kinds) == 2 and kinds[0] in known[:2] and kinds[1] == "SpladePooling"
        wanted = "a Transformer and a SpladePooling"
    return "" if right else f"lists {', '.join(kinds) or 'nothing'}; expected {wanted}"


class FolderFiles:
    """The JSON files of one folder of a model."""

    def __init__(self, find: Find, folder: str, where: str) -> None:
        self.find, self.folder = find, folder
        self.place = "/".join(filter(None, (where, folder)))

    def path(self, name: str) -> FileName | None:
        return self.find(f"{self.folder}/{name}" if self.folder else name)

    def object(self, name: str) -> dict[str, Any]:
        """Read a file that holds an object; {} where there is none."""
        return read_object(self.path(name))

    def flag(self, settings: Mapping[str, Any], key: str, default: bool) -> bool:
        """Give a setting that is true or false; in Python "false", 1 and NaN would all count as true."""
        value = settings.get(key, default)
        if type(value) is not bool:
            raise self.refuse(f"{key!r} must be true or false, found {value!r}")
        return value

    def check_keys(self, settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Refuse a config.json that says more than is known here."""
        unknown = [key for key in settings if key not in known]
        if unknown:
            raise self.refuse(
                f"config.json has {', '.join(map(repr, unknown))}, not known here; known are {', '.join(known)}"
            )

    def tensors(self, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any] | None) -> list[Array]:
        """Read a module's tensors: these and no others. Without a dtype only their shapes are wanted."""
        if dtype is None:
            return [np.broadcast_to(np.float32(0), shape) for shape in shapes.values()]
        path = self.path(SINGLE)
        if path is None:
            raise self.refuse(
                f"there is no {SINGLE}; save the model once more where sentence-transformers is installed: "
                "SentenceTransformer(folder).save(folder)"
            )
        binder = TensorBinder(Config({}), Checkpoint(lambda _: path), (), dtype, f"{self.place}/{SINGLE}")
        found = [np.array(binder.vector((name,), shape)) for name, shape in shapes.items()]
        binder.refuse_leftovers(("",), (), "the module", "its config.json")
        return found

    def refuse(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.place}: {what}")


# -- what they compute -------------------------------------------------------------------------------------------


After = Callable[[Array], Array]


def read_steps(
    modules: list[Module], find: Find, dim: int, dtype: np.dtype[Any] | None, where: str
) -> tuple[tuple[After, ...], int]:
    """Read the modules behind the pooling, one after another: what each does, and the width after the last."""
    steps = []
    for module in modules:
        files = FolderFiles(find, module.path, where)
        settings = files.object("config.json")
        files.check_keys(settings, KEYS[module.kind])
        for name in IN_AND_OUT:
            if settings.get(name) not in (None, "sentence_embedding"):
                raise files.refuse(
                    f"{module.kind} has {name!r} {settings[name]!r}, but here it works on 'sentence_embedding' alone"
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
    activation = TORCH.get(torch_class(named))
    if activation is None:
        raise files.refuse(f"activation_function {named!r} is not one of torch.nn's {', '.join(TORCH)}")
    keeps = files.flag(settings, "use_residual", False)
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (out, dim)}
    if files.flag(settings, "bias", True):
        shapes["linear.bias"] = (out,)
    if keeps and dim != out:
        shapes["residual.weight"] = (out, dim)
    found = dict(zip(shapes, files.tensors(shapes, dtype), strict=True))
    bias, residual = found.get("linear.bias"), found.get("residual.weight")
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
