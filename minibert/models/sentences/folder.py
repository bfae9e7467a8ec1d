"""A folder of sentence-transformers: the modules that it lists in modules.json, and the files of each."""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.config import Config
from minibert.families.parts.heads import STANFORD
from minibert.files.checkpoint import SINGLE, Checkpoint
from minibert.files.reading import FileName, read_object
from minibert.files.tokenizer_files import Find
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
    drive, rest = ntpath.splitdrive(path)
    parts = rest.replace("\\", "/").split("/")
    return bool(drive) or rest[:1] in ("/", "\\") or ".." in parts or "\0" in path


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

    def __init__(self, find: Find, where: str, folder: str = "", opened: dict[str, Any] | None = None) -> None:
        """find: path inside the model -> file. folder: "" for the top one. opened: files read so far."""
        self.find, self.where, self.folder = find, where, folder
        self.place = "/".join(filter(None, (where, folder)))
        self._opened: dict[str, Any] = {} if opened is None else opened

    def inside(self, folder: str) -> FolderFiles:
        """Return the files of another folder in the model."""
        return FolderFiles(self.find, self.where, folder, self._opened)

    def path(self, name: str) -> FileName | None:
        return self.find(f"{self.folder}/{name}" if self.folder else name)

    def object(self, name: str) -> dict[str, Any]:
        """Read a JSON object; {} if the file does not exist."""
        key = f"{self.folder}/{name}"
        if key not in self._opened:
            self._opened[key] = read_object(self.path(name))
        found: dict[str, Any] = self._opened[key]
        return found

    def modules(self) -> list[Module] | None:
        """Read modules.json of the top folder: the modules in order; None without that file.

        Raises CheckpointError for a file that is not a list of modules, and for a path that leaves the folder.
        """
        if MODULES not in self._opened:
            path = self.find(MODULES)
            self._opened[MODULES] = None if path is None else _listed(path, self.where)
        found: list[Module] | None = self._opened[MODULES]
        return found

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
            found = ", ".join(map(repr, unknown))
            raise self.refuse(f"config.json has {found}, not known here; known are {', '.join(known)}")

    def tensors(self, shapes: Mapping[str, tuple[int, ...] | None], dtype: np.dtype[Any] | None) -> list[Array]:
        """Read all tensors of a module: name -> shape, or None for a vector of any length.

        Without a dtype nothing is read: the result has only the shapes. Raises CheckpointError for other tensors.
        """
        if dtype is None:
            return [np.broadcast_to(np.float32(0), shape or ()) for shape in shapes.values()]
        binder = self._binder(dtype)
        found = [np.array(binder.table((name,), shape, axes=1).array()) for name, shape in shapes.items()]
        binder.refuse_leftovers(("",), (), "the module", "its config.json")
        return found

    def matrix(self, name: str, dtype: np.dtype[Any]) -> Array:
        """Read one tensor of two axes from a file that may have more tensors."""
        return np.array(self._binder(dtype).table((name,), None).array())

    def _binder(self, dtype: np.dtype[Any]) -> TensorBinder:
        path = self.path(SINGLE)
        if path is None:
            advice = "save the model once more where sentence-transformers is installed"
            raise self.refuse(f"there is no {SINGLE}; {advice}: {kind_of(self.inside(''))}(folder).save(folder)")
        return TensorBinder(Config({}), Checkpoint(lambda _: path), (), dtype, f"{self.place}/{SINGLE}")

    def refuse(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.place}: {what}")
