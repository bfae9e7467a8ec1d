"""`SavedFolder`: the small files of a folder that sentence-transformers saved, and the modules after its transformer.

A class that a file names is compared with a list of known names and never imported. A module or setting that is not
computed here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.fast import layer_norm
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.errors import CheckpointError
from minibert.families.parts.bound_blocks import TORCH, torch_class
from minibert.families.parts.modules import steady
from minibert.files.tokenizer import Tokenizer
from minibert.files.tokenizer_files import open_tokenizer

from . import folder
from .folder import FAMILY, MASK, MODULES, MULTI, RERANKER, SPARSE, STATIC_MODULE, TOKENIZER, FolderFiles, Module

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
    folder.PAIRS: ((("Transformer",),), "a Transformer alone", ()),
    SPARSE: (tuple((each, "SpladePooling") for each in folder.TRANSFORMERS), "a Transformer and a SpladePooling", ()),
    MULTI: ((("Transformer",),), "a Transformer", ("Dense", "Normalize", MASK)),
}
INSTEAD = {
    "LogitScore": f"; take a reranker with a head of classes, such as {RERANKER}, for one that answers yes or no",
    ROUTER: "; save one of its routes as a model: model[0].sub_modules has the modules of each",
}  # module that is not computed -> advice
SIZED = ("Pooling", "Dense", "LayerNorm")  # modules whose config.json has their sizes
OTHERS = ("pylate.models.Dense.Dense",)  # the same class in another library


# -- oddities: keys and values that older or other programs write; a new one is a new row -------------------------


class Oddity(NamedTuple):
    """One special rule for the settings of a kind of module."""

    name: str
    kind: str
    mend: Callable[[Settings, FolderFiles], Settings]  # (settings, their files for errors) -> today's settings


def _older_width(settings: Settings, files: FolderFiles) -> Settings:
    """Rename the older key of a pooling's width, unless today's key is present too."""
    rest = {key: value for key, value in settings.items() if key != "word_embedding_dimension"}
    return {"embedding_dimension": settings["word_embedding_dimension"], **rest} if len(rest) < len(settings) else rest


def _pooling_by_flags(settings: Settings, files: FolderFiles) -> Settings:
    """List the poolings whose flags are set."""
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if files.flag(settings, flag, False)]
    rest = {key: value for key, value in settings.items() if key not in POOLING_FLAGS}
    return {"pooling_mode": flagged, **rest} if flagged else rest


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
            kind = folder.kind_of(files)
            if kind == SPARSE and [each.kind for each in modules] == [ROUTER]:
                router = read_router(files.inside(modules[0].path))
                modules = router.model
            _refuse_fault(modules, kind, files)
        elif folder.by_stanford(files):
            kind = MULTI
        first = (modules or [])[:1]
        others = []
        for each in (modules or [])[1:]:
            inside = files.inside(each.path)
            if each.kind in SIZED and not inside.object("config.json"):
                raise inside.refuse(f"the {each.kind} has no config.json, which says its sizes; fetch the folder again")
            others.append(each._replace(settings=mended(each.kind, inside)))
        settings = files.object(folder.SETTINGS) if modules else {}
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
        told = files.length(TOKENIZER, files.object(TOKENIZER), "model_max_length")
        longest = told[0][0] if told else None
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
    if folder.leaves(name):
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
        for name, found in zip(IN_AND_OUT, (reads, reads if writes is None else writes), strict=True):
            if found != works_on:
                raise files.refuse(f"{module.kind} has {name!r} {found!r}, but here it works on {works_on!r} alone")
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
    found = dict(zip(shapes, files.tensors(shapes, dtype), strict=True))
    bias, residual = found.get("linear.bias"), found.get("residual.weight")
    made = partial(dense, weight=found["linear.weight"], bias=bias, residual=residual)
    return partial(made, activation=activation, keeps=keeps), out


def dense(x: Array, weight: Array, bias: Array | None, residual: Array | None, activation: After, keeps: bool) -> Array:
    """f(x @ weight^T + bias), plus x or x @ residual^T if it keeps x."""
    y = activation(steady(x, weight, bias))
    if keeps:
        y = y + (x if residual is None else steady(x, residual))
    return y


STEPS: Mapping[str, Callable[[dict[str, Any], FolderFiles, int, np.dtype[Any] | None], tuple[After, int]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Dropout": lambda settings, files, dim, dtype: (TORCH["Identity"], dim),  # identity outside training
    "Normalize": lambda settings, files, dim, dtype: (normalized, dim),
}
"""Module -> its reader: settings, files, the width before it and the dtype -> its function and the width after it."""
