"""`SavedFolder`: all that the small files of a model's folder say of its use, as sentence-transformers writes them.

A name is compared with those that are known here; nothing that a file names is ever imported. What a file asks for and
this package does not compute is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from minibert.errors import CheckpointError

from .folder import (
    FAMILY,
    MASK,
    MODULES,
    MULTI,
    PAIRS,
    RERANKER,
    SETTINGS,
    SPARSE,
    STATIC_MODULE,
    TOKENIZER,
    TRANSFORMERS,
    FolderFiles,
    Module,
    by_stanford,
    kind_of,
)
from .router import ROUTER, Router, read_router
from .sentence_modules import KEYS

Settings = dict[str, Any]
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # several are laid side by side in this order
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # the first was once named after its model
# what a folder is saved as -> how its modules may begin, in words too, and those of which any number may follow
MODULES_OF: Mapping[str, tuple[tuple[tuple[str, ...], ...], str, tuple[str, ...]]] = {
    "SentenceTransformer": (
        (("Transformer", "Pooling"), (STATIC_MODULE,)),
        f"a Transformer, a Pooling, or a {STATIC_MODULE} in their place",
        (*KEYS,),
    ),
    PAIRS: ((("Transformer",),), "a Transformer alone", ()),
    SPARSE: (tuple((each, "SpladePooling") for each in TRANSFORMERS), "a Transformer and a SpladePooling", ()),
    MULTI: ((("Transformer",),), "a Transformer", ("Dense", "Normalize", MASK)),
}
INSTEAD = {
    "LogitScore": f"; take a reranker with a head of classes, such as {RERANKER}, for one that answers yes or no",
    ROUTER: "; save one of its routes as a model: model[0].sub_modules has the modules of each",
}  # of modules that are not computed
SIZED = ("Pooling", "Dense", "LayerNorm")  # modules that are nothing without the sizes in their config.json
OTHERS = ("pylate.models.Dense.Dense",)  # classes of another library that are the same


# -- oddities: keys and values that older or other programs write. The next one is a row ---------------------------


class Oddity(NamedTuple):
    """One oddity of the settings of a kind of modules."""

    name: str
    kind: str
    mend: Callable[[Settings, FolderFiles], Settings]  # the settings, and their files for errors -> today's settings


def _older_width(settings: Settings, files: FolderFiles) -> Settings:
    """Give the width of a pooling under its key of today, unless that is there too."""
    rest = {key: value for key, value in settings.items() if key != "word_embedding_dimension"}
    return {"embedding_dimension": settings["word_embedding_dimension"], **rest} if len(rest) < len(settings) else rest


def _pooling_by_flags(settings: Settings, files: FolderFiles) -> Settings:
    """Give the poolings whose flags are set as a list."""
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if files.flag(settings, flag, False)]
    rest = {key: value for key, value in settings.items() if key not in POOLING_FLAGS}
    return {"pooling_mode": flagged, **rest} if flagged else rest


ODDITIES = (
    Oddity("a flag for each pooling", "Pooling", _pooling_by_flags),
    Oddity("the older key of a pooling's width", "Pooling", _older_width),
)


def mended(kind: str, files: FolderFiles) -> Settings:
    """Read a module's settings as if they had been written today."""
    settings = files.object("config.json")
    for oddity in ODDITIES:
        if oddity.kind == kind:
            settings = oddity.mend(settings, files)
    return settings


# -- the folder ------------------------------------------------------------------------------------------------


class SavedFolder(NamedTuple):
    """The small files of a model's folder, each opened once."""

    files: FolderFiles  # of the whole folder
    kind: str = ""  # the class that the folder was saved as, a name in `USES`; "" without modules.json
    modules: tuple[Module, ...] = ()  # in their order, with their settings; of a Router those of documents
    router: Router | None = None  # of a SparseEncoder whose queries are looked up
    settings: Mapping[str, Any] = {}  # config_sentence_transformers.json
    transformer: Mapping[str, Any] = {}  # the settings of the first module
    transformer_file: str = TRANSFORMER_CONFIGS[0]  # which says them
    tokenizer: Mapping[str, Any] = {}  # tokenizer_config.json

    @property
    def beside(self) -> FolderFiles:
        """The files beside the transformer or the static rows; without modules.json those of the top folder."""
        return self.files.inside(self.modules[0].path if self.modules else "")

    @property
    def static(self) -> bool:
        """Whether modules.json lists a static model."""
        return bool(self.modules) and self.modules[0].kind == STATIC_MODULE

    @classmethod
    def read(cls, files: FolderFiles) -> SavedFolder:
        """Read a folder. Raises CheckpointError that names the first module or file that is not understood."""
        modules, kind, router = files.modules(), "", None
        if modules is not None:
            kind = kind_of(files)
            if kind == SPARSE and [each.kind for each in modules] == [ROUTER]:
                router = read_router(files.inside(modules[0].path))
                modules = router.model
            _refuse_fault(modules, kind, files)
        elif by_stanford(files):
            kind = MULTI
        first = (modules or [])[:1]
        others = []
        for each in (modules or [])[1:]:
            inside = files.inside(each.path)
            if each.kind in SIZED and not inside.object("config.json"):
                raise inside.refuse(f"the {each.kind} has no config.json, which says its sizes; fetch the folder again")
            others.append(each._replace(settings=mended(each.kind, inside)))
        settings = files.object(SETTINGS) if modules else {}
        saved = cls(files, kind, (*first, *others), router, settings)
        beside = saved.beside
        saved = saved._replace(tokenizer=beside.object(TOKENIZER))
        if not kind or saved.static:
            return saved
        named = next((name for name in TRANSFORMER_CONFIGS if beside.object(name)), TRANSFORMER_CONFIGS[0])
        return saved._replace(transformer=beside.object(named), transformer_file=named)


def _refuse_fault(modules: Sequence[Module], kind: str, files: FolderFiles) -> None:
    """Refuse a list that is not that of the modules of such a folder in their order."""
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
