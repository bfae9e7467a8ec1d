"""A folder that sentence-transformers saved: its small files, and the modules after its transformer.

A class that a file names is compared with a list of known names and never imported. A module or setting that is not
computed here is refused by its name.
"""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.fast import layer_norm
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.errors import CheckpointError
from minibert.families.parts.config import Config
from minibert.families.parts.heads import STANFORD
from minibert.families.parts.modules import steady
from minibert.files.checkpoint import SINGLE, Checkpoint
from minibert.files.reading import FileName, read_object
from minibert.files.tokenizer import Tokenizer
from minibert.files.tokenizer_files import Find, open_tokenizer
from minibert.models.open.binder import TensorBinder

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
FAMILY = "sentence_transformers."  # all its classes, in every module that has ever defined them
TRANSFORMERS = ("Transformer", "MLMTransformer")
STATIC_MODULE, SPARSE, MULTI = "StaticEmbedding", "SparseEncoder", "MultiVectorEncoder"
PAIRS = "CrossEncoder"
MASK = "MultiVectorMask"  # a module of a MultiVectorEncoder
RERANKER = "cross-encoder/ms-marco-MiniLM-L6-v2"  # recommended in messages
USES = {
    "SentenceTransformer": "encode, encode_query and encode_document", PAIRS: "predict and rank",
    SPARSE: "encode_sparse, encode_query and encode_document",
    MULTI: "encode_query, encode_document, encode and rank",
}  # fmt: skip
PYLATE = ("query_prefix", "document_prefix")  # keys of its older folders, which have no model_type
After = Callable[[Array], Array]
Settings = dict[str, Any]
# the keys of each module's config.json; any other key may change the result and is refused
IN_AND_OUT = ("module_input_name", "module_output_name")
KEYS: Mapping[str, tuple[str, ...]] = {
    "Dense": ("in_features", "out_features", "bias", "activation_function", "use_residual", *IN_AND_OUT),
    "LayerNorm": ("dimension",),
    "Dropout": ("dropout",),
    "Normalize": IN_AND_OUT,
}
SENTENCES, TOKENS = "sentence_embedding", "token_embeddings"  # the input of a module
LAYER_NORM_EPS = 1e-5  # the default of torch.nn.LayerNorm; no folder changes it
ROUTER_FILE, ROUTER, ROUTER_WEIGHTS = "router_config.json", "Router", "SparseStaticEmbedding"
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # several are concatenated in this order
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # older folders name it after the model
# class of a folder -> its possible first modules, the same for messages, and the modules that may follow in any number
MODULES_OF: Mapping[str, tuple[tuple[tuple[str, ...], ...], str, tuple[str, ...]]] = {
    "SentenceTransformer": (
        (("Transformer", "Pooling"), (STATIC_MODULE,)),
        f"a Transformer, a Pooling, or a {STATIC_MODULE} in their place",
        (*KEYS,),
    ),
    PAIRS: ((("Transformer",),), "a Transformer alone", ()),
    SPARSE: (tuple((name, "SpladePooling") for name in TRANSFORMERS), "a Transformer and a SpladePooling", ()),
    MULTI: ((("Transformer",),), "a Transformer", ("Dense", "Normalize", MASK)),
}
INSTEAD = {
    "LogitScore": f"; take a reranker with a head of classes, such as {RERANKER}, for one that answers yes or no",
    ROUTER: "; save one of its routes as a model: model[0].sub_modules has the modules of each",
}  # module that is not computed -> advice
SIZED = ("Pooling", "Dense", "LayerNorm")  # modules whose config.json has their sizes
OTHERS = ("pylate.models.Dense.Dense",)  # the same class in another library


class Module(NamedTuple):
    """One line of modules.json, with the settings of its folder."""

    kind: str
    path: str
    type: str
    settings: Mapping[str, Any] = {}


def _listed(path: FileName, where: str) -> list[Module]:
    try:
        with open(path, "rb") as file:
            entries = json.loads(file.read().decode("utf-8-sig"))  # with a byte order mark, as some editors write it
        if not isinstance(entries, list):
            raise ValueError(f"found {type(entries).__name__}")
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("type"), str) or "path" not in entry:
                raise ValueError(f"found {entry!r:.200}")
    except (ValueError, RecursionError, OSError) as error:
        expected = "a list of modules, each with a type and a path"
        raise CheckpointError(f"{where}: {MODULES} must be {expected} ({error}); fetch it again") from None
    modules = []
    for path, kind in ((entry["path"], entry["type"]) for entry in entries):
        if not isinstance(path, str) or leaves(path):
            raise CheckpointError(f"{where}: {MODULES} has the path {path!r}, expected a folder inside the model's own")
        folder = posixpath.normpath(path)  # "." for the top folder, as model2vec writes it
        modules.append(Module(kind.rpartition(".")[2], "" if folder == "." else folder, kind))
    return modules


def leaves(path: str) -> bool:
    r"""Whether a path is absolute or leaves its folder, on POSIX or on Windows.

    >>> [leaves(path) for path in ("1_Pooling", "", "/etc", "a/../..", "C:x", r"\\server\x", r"a\..\b")]
    [False, False, True, True, True, True, True]
    """
    drive, tail = ntpath.splitdrive(path)
    parts = tail.replace("\\", "/").split("/")
    return bool(drive) or tail[:1] in ("/", "\\") or ".." in parts or "\0" in path


def is_length(value: Any) -> bool:
    """Whether a value is an integer >= 1, or a float equal to one: some files have 512.0 or 1e30."""
    return type(value) in (int, float) and value >= 1 and (type(value) is int or value.is_integer())


def kind_of(files: FolderFiles) -> str:
    """Return the class that a folder was saved as; PyLate's and Stanford's folders count as a MultiVectorEncoder's."""
    settings = files.object(SETTINGS)
    kind = settings.get("model_type", "SentenceTransformer")
    if kind == "ColBERT" or ("model_type" not in settings and (by_stanford(files) or settings.keys() & PYLATE)):
        return MULTI
    if not isinstance(kind, str) or kind not in USES:
        raise files.refuse(f"{SETTINGS} says that this is a {kind}; those computed here are {', '.join(USES)}")
    return kind


def by_stanford(files: FolderFiles) -> bool:
    """Whether config.json says that this is Stanford's ColBERT."""
    named = files.object("config.json").get("architectures")
    return isinstance(named, list) and STANFORD in named


class FolderFiles:
    """The files of one folder of a model; each JSON file is read once."""

    folder = ""  # the top one

    def __init__(self, find: Find, where: str) -> None:
        """find: path inside the model -> file. where: the model's name in errors."""
        self._find, self.where, self.place = find, where, where
        self.found: dict[str, FileName] = {}  # each file found so far, by its path inside the model
        self._opened: dict[str, Any] = {}

    def inside(self, folder: str) -> FolderFiles:
        """Return the files of another folder in the model."""
        inside = copy(self)
        inside.folder, inside.place = folder, "/".join(filter(None, (self.where, folder)))
        return inside

    def find(self, path: str) -> FileName | None:
        """Return a file of the model by its path inside the model, or None."""
        file = self._find(path)
        if file is not None:
            self.found[path] = file
        return file

    def path(self, name: str) -> FileName | None:
        """Return a file of this folder, or None."""
        return self.find(f"{self.folder}/{name}" if self.folder else name)

    def object(self, name: str) -> dict[str, Any]:
        """Read a JSON object; {} if the file does not exist."""
        key = f"{self.folder}/{name}"
        if key not in self._opened:
            self._opened[key] = read_object(self.path(name))
        content: dict[str, Any] = self._opened[key]
        return content

    def modules(self) -> list[Module] | None:
        """Read modules.json of the top folder: the modules in order; None without that file.

        Raises CheckpointError for a file that is not a list of modules, and for a path that leaves the folder.
        """
        if MODULES not in self._opened:
            path = self.find(MODULES)
            self._opened[MODULES] = None if path is None else _listed(path, self.where)
        modules: list[Module] | None = self._opened[MODULES]
        return modules

    def flag(self, settings: Mapping[str, Any], key: str, default: bool) -> bool:
        """Return a setting as a bool. Raises CheckpointError for anything but true, false, 1, 0 and null."""
        value = settings.get(key, default)
        if type(value) not in (bool, int, type(None)) or value not in (0, 1, None):
            raise self.refuse(f"{key!r} must be true or false, found {value!r}")
        return bool(value)

    def length(self, file: str, settings: Mapping[str, Any], *keys: str) -> list[tuple[int, str]]:
        """Return the value of the first of these keys that is present, and its place, as a list; [] without any.

        Raises CheckpointError for anything but an integer >= 1.
        """
        for key, value in ((key, settings[key]) for key in keys if settings.get(key) is not None):
            if not is_length(value):
                raise self.refuse(f"{key} in {file} must be an integer >= 1, found {value!r}")
            return [(int(value), f"{key} in {file}")]
        return []

    def check_keys(self, settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Refuse a config.json with unknown keys."""
        unknown = [key for key in settings if key not in known]
        if unknown:
            keys = ", ".join(map(repr, unknown))
            raise self.refuse(f"config.json has {keys}, not known here; known are {', '.join(known)}")

    def tensors(self, shapes: Mapping[str, tuple[int, ...] | None], dtype: np.dtype[Any] | None) -> list[Array]:
        """Read all tensors of a module: name -> shape, or None for a vector of any length.

        Without a dtype nothing is read: the result has only the shapes. Raises CheckpointError for other tensors.
        """
        if dtype is None:
            return [np.broadcast_to(np.float32(0), shape or ()) for shape in shapes.values()]
        binder = self._binder(dtype)
        arrays = [np.array(binder.table((name,), shape, axes=1).array()) for name, shape in shapes.items()]
        binder.refuse_leftovers(("",), (), "the module", "its config.json")
        return arrays

    def matrix(self, name: str, dtype: np.dtype[Any]) -> Array:
        """Read one tensor of two axes from a file that may have more tensors."""
        return np.array(self._binder(dtype).table((name,), None).array())

    def _binder(self, dtype: np.dtype[Any]) -> TensorBinder:
        path = self.path(SINGLE)
        if path is None:
            advice = "save the model once more where sentence-transformers is installed"
            raise self.refuse(f"there is no {SINGLE}; {advice}: {kind_of(self.inside(''))}(folder).save(folder)")
        return TensorBinder(Config({}), Checkpoint(lambda _: path), (), dtype, f"{self.place}/{SINGLE}")

    def refuse(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.place}: {problem}")


# -- oddities: keys and values that older or other programs write; a new one is a new row -------------------------


class Oddity(NamedTuple):
    """One special rule for the settings of a kind of module."""

    name: str
    kind: str
    mend: Callable[[Settings, FolderFiles], Settings]  # (settings, their files for errors) -> today's settings


def _older_width(settings: Settings, files: FolderFiles) -> Settings:
    """Rename the older key of a pooling's width, unless today's key is present too."""
    kept = {key: value for key, value in settings.items() if key != "word_embedding_dimension"}
    return {"embedding_dimension": settings["word_embedding_dimension"], **kept} if len(kept) < len(settings) else kept


def _pooling_by_flags(settings: Settings, files: FolderFiles) -> Settings:
    """List the poolings whose flags are set."""
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if files.flag(settings, flag, False)]
    kept = {key: value for key, value in settings.items() if key not in POOLING_FLAGS}
    return {"pooling_mode": flagged, **kept} if flagged else kept


ODDITIES = (
    Oddity("a flag for each pooling", "Pooling", _pooling_by_flags),
    Oddity("the older key of a pooling's width", "Pooling", _older_width),
)


def mended(kind: str, files: FolderFiles) -> Settings:
    """Read a module's settings in today's form."""
    settings = files.object("config.json")
    for oddity in ODDITIES:
        if oddity.kind == kind:
            settings = oddity.mend(settings, files)
    return settings


# -- the folder ------------------------------------------------------------------------------------------------


class SavedFolder(NamedTuple):
    """The small files of a model's folder, each read once."""

    files: FolderFiles  # the top folder
    kind: str = ""  # the folder's class, a name in `USES`; "" without modules.json
    modules: tuple[Module, ...] = ()  # in order, with their settings; for a Router its document modules
    router: Router | None = None  # set for a SparseEncoder that looks up its queries
    settings: Mapping[str, Any] = {}  # config_sentence_transformers.json
    transformer: Mapping[str, Any] = {}  # the settings of the first module
    transformer_file: str = TRANSFORMER_CONFIGS[0]  # the file of these settings
    tokenizer: Mapping[str, Any] = {}  # tokenizer_config.json

    @property
    def beside(self) -> FolderFiles:
        """The folder of the transformer or the static rows; without modules.json the top folder."""
        return self.files.inside(self.modules[0].path if self.modules else "")

    @property
    def static(self) -> bool:
        """Whether modules.json lists a static model."""
        return bool(self.modules) and self.modules[0].kind == STATIC_MODULE

    @classmethod
    def read(cls, files: FolderFiles) -> SavedFolder:
        """Read a folder. Raises CheckpointError with the name of the first unknown module or file."""
        modules, kind, router = files.modules(), "", None
        if modules is not None:
            kind = kind_of(files)
            if kind == SPARSE and [module.kind for module in modules] == [ROUTER]:
                router = read_router(files.inside(modules[0].path))
                modules = router.model
            _refuse_fault(modules, kind, files)
        elif by_stanford(files):
            kind = MULTI
        first = (modules or [])[:1]
        others = []
        for module in (modules or [])[1:]:
            inside = files.inside(module.path)
            if module.kind in SIZED and not inside.object("config.json"):
                raise inside.refuse(
                    f"the {module.kind} has no config.json, which says its sizes; fetch the folder again"
                )
            others.append(module._replace(settings=mended(module.kind, inside)))
        settings = files.object(SETTINGS) if modules else {}
        saved = cls(files, kind, (*first, *others), router, settings)
        beside = saved.beside
        saved = saved._replace(tokenizer=beside.object(TOKENIZER))
        if not kind or saved.static:
            return saved
        named = next((name for name in TRANSFORMER_CONFIGS if beside.object(name)), TRANSFORMER_CONFIGS[0])
        return saved._replace(transformer=beside.object(named), transformer_file=named)


def _refuse_fault(modules: Sequence[Module], kind: str, files: FolderFiles) -> None:
    """Refuse a list of modules that a folder of this class cannot have."""
    beginnings, wanted, more = MODULES_OF[kind]
    known, kinds = dict.fromkeys((*chain(*beginnings), *more)), tuple(module.kind for module in modules)
    wrong = [
        f"names {module.type!r}, but only {', '.join(known)} of sentence-transformers are computed here in a "
        f"{kind}{INSTEAD.get(module.kind, '')}"
        for module in modules
        if module.kind not in known or not (module.type.startswith(FAMILY) or module.type in OTHERS)
    ]
    if not any(kinds[: len(some)] == some and {*kinds[len(some) :]} <= {*more} for some in beginnings):
        then = f", then any number of {', '.join(more)}" if more else ""
        wrong.append(f"lists {', '.join(kinds) or 'nothing'}; expected {wanted}{then}")
    if wrong:
        alone = files.find("config.json") is not None and kind == "SentenceTransformer"
        advice = f"; a copy of the folder without {MODULES} gives the tokens' vectors, and their mean" if alone else ""
        raise CheckpointError(f"{files.where}: {MODULES} {wrong[0]}{advice}")


# -- the Router of a SparseEncoder: SPLADE without a model for queries, as in OpenSearch's folders --------------------


class TokenWeights(NamedTuple):
    """A weight for each token of the vocabulary; a text has the weights of its tokens, each token once."""

    weights: Array
    tokenizer: Callable[[], Tokenizer]  # opens the tokenizer, without special tokens
    longest: int | None  # tokens of a text that count; None: all


class Router(NamedTuple):
    """The two routes of a Router's file: queries are looked up in a table, documents go through the model."""

    model: list[Module]  # modules for documents
    lookup: FolderFiles  # the table for queries
    default: str  # the default task

    def weights(self, dtype: np.dtype[Any]) -> TokenWeights:
        """Read the table for queries. Raises CheckpointError for any other file."""
        files = self.lookup
        files.check_keys(files.object("config.json"), ("frozen",))
        lengths = files.length(TOKENIZER, files.object(TOKENIZER), "model_max_length")
        longest = lengths[0][0] if lengths else None
        tokenizer = cache(lambda: open_tokenizer(files.path, None, None, files.place).without_special_tokens())
        return TokenWeights(files.tensors({"weight": None}, dtype)[0], tokenizer, longest)


def read_router(files: FolderFiles) -> Router:
    """Read a Router. Raises CheckpointError for routes other than a table for queries and a model for documents."""
    data = files.object(ROUTER_FILE)
    try:
        types, structure, more = (data[key] for key in ("types", "structure", "parameters"))
        routes = [[_module(files, name, types[name]) for name in structure[task]] for task in ("query", "document")]
        default = next(iter(structure)) if more.get("default_route") is None else more["default_route"]
        odd = default not in structure or more.get("route_mappings") or not more.get("allow_empty_key", True)
        (query,), document = routes
    except (AttributeError, KeyError, TypeError, ValueError):  # an unknown key or name, or a path outside the folder
        odd = True
    if odd or not document or len(structure) != 2 or query.kind != ROUTER_WEIGHTS or not query.type.startswith(FAMILY):
        routes_are = f"the routes query, {ROUTER_WEIGHTS} alone, and document, a model, in folders that 'types' has"
        expected = f"{routes_are}, and no other 'parameters' than a 'default_route'"
        raise files.refuse(f"{ROUTER_FILE} must have {expected}; found {data!r:.600}")
    return Router(document, files.inside(query.path), default)


def _module(files: FolderFiles, name: str, kind: str) -> Module:
    if leaves(name):
        raise ValueError(name)
    return Module(kind.rpartition(".")[2], "/".join(filter(None, (files.folder, name))), kind)


# -- the modules behind the transformer ----------------------------------------------------------------------------


def read_steps(
    modules: Sequence[Module], whole: FolderFiles, dim: int, dtype: np.dtype[Any] | None, works_on: str = SENTENCES
) -> tuple[tuple[After, ...], int]:
    """Return a function for each module after the pooling, and the width after the last.

    whole: the model's files. works_on: TOKENS without pooling; a Dense then need not name its input.
    """
    steps = []
    for module in modules:
        files, settings = whole.inside(module.path), dict(module.settings)
        files.check_keys(settings, KEYS[module.kind])
        reads = settings.get(IN_AND_OUT[0], SENTENCES if module.kind == "Normalize" else works_on)
        writes = settings.get(IN_AND_OUT[1])
        for name, value in zip(IN_AND_OUT, (reads, reads if writes is None else writes), strict=True):
            if value != works_on:
                raise files.refuse(f"{module.kind} has {name!r} {value!r}, but here it works on {works_on!r} alone")
        step, dim = STEPS[module.kind](settings, files, dim, dtype)
        steps.append(step)
    return tuple(steps), dim


def _layer_norm(settings: Settings, files: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    if (width := settings.get("dimension")) != dim:
        raise files.refuse(f"LayerNorm is for {width!r} numbers, but {dim} come out of the module before")
    weight, bias = files.tensors({"norm.weight": (dim,), "norm.bias": (dim,)}, dtype)
    return partial(layer_norm, weight=weight, bias=bias, eps=LAYER_NORM_EPS), dim


def _dense(settings: dict[str, Any], files: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    """`y = f(x @ weight^T + bias)`, plus x or x @ residual^T with `use_residual`."""
    from minibert.families.parts.bound_blocks import TORCH, torch_class  # here, since `load` needs no blocks

    width, out = settings.get("in_features"), settings.get("out_features")
    if width != dim or type(out) is not int or out < 1:
        raise files.refuse(f"Dense maps {width!r} numbers to {out!r}, but {dim} come out of the module before")
    named = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = TORCH.get(torch_class(named))
    if activation is None:
        raise files.refuse(f"activation_function {named!r} is not one of torch.nn's {', '.join(TORCH)}")
    keeps = files.flag(settings, "use_residual", False)
    shapes: dict[str, tuple[int, ...] | None] = {"linear.weight": (out, dim)}
    if files.flag(settings, "bias", True):
        shapes["linear.bias"] = (out,)
    if keeps and dim != out:
        shapes["residual.weight"] = (out, dim)
    tensors = dict(zip(shapes, files.tensors(shapes, dtype), strict=True))
    bias, residual = tensors.get("linear.bias"), tensors.get("residual.weight")
    linear = partial(dense, weight=tensors["linear.weight"], bias=bias, residual=residual)
    return partial(linear, activation=activation, keeps=keeps), out


def _dropout(settings: Settings, files: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    from minibert.families.parts.bound_blocks import TORCH

    return TORCH["Identity"], dim  # outside training


def dense(x: Array, weight: Array, bias: Array | None, residual: Array | None, activation: After, keeps: bool) -> Array:
    """f(x @ weight^T + bias), plus x or x @ residual^T if it keeps x."""
    y = activation(steady(x, weight, bias))
    if keeps:
        y = y + (x if residual is None else steady(x, residual))
    return y


STEPS: Mapping[str, Callable[[dict[str, Any], FolderFiles, int, np.dtype[Any] | None], tuple[After, int]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Dropout": _dropout,
    "Normalize": lambda settings, files, dim, dtype: (normalized, dim),
}
"""Module -> its reader: settings, files, the width before it and the dtype -> its function and the width after it."""
