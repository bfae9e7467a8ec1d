"""A `SavedFolder` -> a `SentenceConfig`: how its model is used; and the options of `load_encoder` that change that.

A folder is for sentence vectors (SentenceTransformer), scores of pairs (CrossEncoder), sparse vectors (SparseEncoder)
or a vector of each token (MultiVectorEncoder).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import MAXSIMS, POOLINGS, SIMILARITIES, normalized
from minibert.errors import Load, Option, error_of, warn
from minibert.families.parts.config import Config, stays_causal
from minibert.families.static import STATIC
from minibert.models.run.attributes import check_positive, unexpected

from .folder import MULTI, PAIRS, SETTINGS, SPARSE, TOKENIZER, USES, SavedFolder, TokenWeights, is_length, read_steps
from .late import LateInteraction, read_late, read_older

if TYPE_CHECKING:
    from minibert.models.input_layer import EmbeddingLayer

# class of a folder -> the transformer's task, its output, and the name of the output
TASKS = {
    "SentenceTransformer": ("feature-extraction", "last_hidden_state", "token_embeddings"),
    PAIRS: ("sequence-classification", "logits", "scores"),
    SPARSE: ("fill-mask", "logits", "token_embeddings"),
    MULTI: ("feature-extraction", "last_hidden_state", "token_embeddings"),
}
# class that a folder names -> what its methods return, for messages
GIVES = {"SentenceTransformer": "one vector of a text", PAIRS: "scores of pairs", SPARSE: "sparse vectors"}
# arguments for transformers' classes: the newer name and the older name of each
TOKENIZER_ARGUMENTS = ("processor_kwargs", "tokenizer_args")
ARGUMENTS = ("model_kwargs", "model_args", "config_kwargs", "config_args", *TOKENIZER_ARGUMENTS)
IGNORED = ("trust_remote_code", "add_pooling_layer", "attn_implementation", "use_fast", "low_cpu_mem_usage")
DTYPES, FORMATS = ("torch_dtype", "dtype"), (None, "auto", "float64", "float32", "float16", "bfloat16")

# arguments of sentence-transformers' constructors -> the values that change nothing here
HABITS: Mapping[str, tuple[Any, ...]] = {
    "device": (None, "cpu"), "trust_remote_code": (False, None), "backend": ("torch",),
    **dict.fromkeys(("model_kwargs", "processor_kwargs", "tokenizer_kwargs", "config_kwargs"), (None, {})),
    **dict.fromkeys(("modules", "model_card_data", "use_auth_token"), (None,)),
}  # fmt: skip
PAGE = 'the page "from sentence-transformers" says what takes its place'
Result = Literal["dense", "tokens", "sparse", "scores"]


class SentenceConfig(NamedTuple):
    """The settings of a folder: how texts become ids, and how hidden states become vectors or scores."""

    kind: str = ""  # the folder's class, a name in `USES`; "" without modules.json
    static: bool = False  # whether the model has no blocks
    poolings: tuple[str, ...] = ("mean",)  # names in `POOLINGS`, concatenated
    picks: Callable[[Array], Array] | None = None  # instead of pooling: ids (texts, seq) -> the position of one token
    include_prompt: bool = True  # whether the prompt's tokens are pooled
    after: tuple[Callable[[Array], Array], ...] = ()  # applied to the pooled vectors in turn
    dim: int = 0  # numbers of the final vector
    longest: int | None = None  # tokens, with special ones; longer texts are truncated. None: no limit
    longest_from: str = ""  # its source: a key and its file, or the position table
    tokenizer_length: int | None = None  # model_max_length of tokenizer_config.json, if it is a count
    lengths: Mapping[str, int] = {}  # task, "query" or "document" -> `longest` for this task
    lower_case: bool = False  # whether texts are lowercased before tokenizing
    prompts: Mapping[str, str] = {"query": "", "document": ""}  # name -> text before each text
    default_prompt: str | None = None  # its name
    similarity: str | None = None  # name in `SIMILARITIES` or `MAXSIMS`; None: the default
    truncate_dim: int | None = None  # first numbers of a vector that are kept; None: all
    activation: str | None = None  # the import path of the class applied to the logits of pairs
    splade: tuple[str, str] = ("max", "relu")  # logits -> sparse vector: pooling, activation
    query_weights: TokenWeights | None = None  # looked up instead of the model, for queries
    default_task: str | None = None  # the task of a SparseEncoder's texts without one
    max_active_dims: int | None = None  # numbers of a sparse vector that are kept; None: all
    late: LateInteraction | None = None  # set for a MultiVectorEncoder

    @classmethod
    def of(
        cls, saved: SavedFolder, layer: EmbeddingLayer, config: Config, dtype: np.dtype[Any] | None, dim: int
    ) -> SentenceConfig:
        """Read the settings of a folder.

        layer, config: those of the encoder; dim: the width of a token's vector. dtype: the format of the dense layers;
        None: read no weight. Without
        modules.json a vector is the mean of the tokens, or the last token of a ForCausalLM: as in
        sentence-transformers.

        Raises CheckpointError with the file and the unknown entry.
        """
        longest = layer.max_length
        if layer.family is STATIC:
            return cls(**_static(saved, layer, dtype), static=True)
        if not saved.kind:
            named = config.get("architectures")  # transformers writes a list with one name
            continues = isinstance(named, list | tuple) and str(next(iter(named), "")).endswith("ForCausalLM")
            poolings = ("lasttoken",) if continues and stays_causal(config) else ("mean",)
            return cls(poolings=poolings, dim=dim, **_lengths({}, saved, config, longest))
        settings, beside = dict(saved.transformer), saved.beside
        fields = {"lower_case": beside.flag(settings, "do_lower_case", False), **_prompts(saved)}
        _check_settings(settings, saved)
        if saved.kind == MULTI:
            older = read_older(saved)
            settings = {**older.settings, **settings}
            fields["late"], fields["dim"] = read_late(saved, settings, older, dim, longest, dtype)
            fields["prompts"] |= older.prompts
            filled = settings.get("query_expansion") or {}
            if filled.get("strategy") == "fixed":  # before any other length
                settings["query_length"] = filled["length"]
        elif saved.kind == "SentenceTransformer":
            fields |= _pooling(saved, dim)
            width = dim * len(fields["poolings"])
            fields["after"], fields["dim"] = read_steps(saved.modules[2:], saved.files, width, dtype)
        elif saved.kind == SPARSE:
            fields["splade"] = _splade(saved)
        if saved.router:
            fields["default_task"] = saved.router.default
            fields["query_weights"] = None if dtype is None else saved.router.weights(dtype)
        return cls(kind=saved.kind, **fields, **_lengths(settings, saved, config, longest))

    @property
    def result(self) -> Result:
        """The kind of result: "dense", one vector per text; "tokens", one per token; "sparse"; or "scores" of pairs."""
        if self.late:
            return "tokens"
        return "sparse" if self.kind == SPARSE else "scores" if self.kind == PAIRS else "dense"

    def check_use(self, wanted: str) -> None:
        """Raise ValueError if the folder was saved for another use; a static model fails later, as it has no head."""
        if self.kind not in ("", wanted) and not self.static:
            message = f"this model's folder was saved as a {self.kind}, whose methods here are {USES[self.kind]}; for "
            raise error_of(ValueError, f"{message}{GIVES[wanted]} ", Load(f"the folder of a {wanted}"))

    def prompt(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return the text to put before each text. Raises ValueError for an unknown name."""
        if prompt is not None:
            if not isinstance(prompt, str):
                raise TypeError(f"prompt must be a str, found {type(prompt).__name__}")
            return prompt
        name = self.default_prompt if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts))
            problem = f" must be one of this model's {known}, found {name!r}; any text can be passed as "
            raise error_of(ValueError, Option("prompt_name"), problem, Option("prompt"))
        return self.prompts[name]

    def width(self, truncate_dim: int | None = None) -> int:
        """Count the numbers of a vector; truncate_dim: the option of a call.

        Raises ValueError if the folder is not for sentence vectors.
        """
        self.check_use("SentenceTransformer")
        most = self.truncate_dim if truncate_dim is None else truncate_dim
        return self.dim if most is None else min(most, self.dim)

    @property
    def measure(self) -> str:
        """The measure of similarity, a name in `SIMILARITIES` or `MAXSIMS`."""
        return self.similarity or "cosine"

    def table(self, task: str | None) -> TokenWeights | None:
        """Return the table for a task's sparse vectors; None: the model computes them."""
        return self.query_weights if (task or self.default_task) == "query" else None

    @property
    def ends_normalized(self) -> bool:
        """Whether the last module is Normalize; `truncate_dim` may remove numbers after it."""
        return self.after[-1:] == (normalized,)

    def normalizes(self) -> bool:
        """Whether each vector has length 1."""
        return self.ends_normalized and self.width() == self.dim


# -- the modules -------------------------------------------------------------------------------------------------


def _static(saved: SavedFolder, layer: EmbeddingLayer, dtype: np.dtype[Any] | None) -> dict[str, Any]:
    """Read the folder of a static model; without modules.json (model2vec) config.json has `normalize`."""
    fields: dict[str, Any] = {"dim": layer.dim, "after": (normalized,) if layer.config.flag("normalize") else ()}
    if saved.modules:
        fields = {"kind": saved.kind, **_prompts(saved)}
        fields["after"], fields["dim"] = read_steps(saved.modules[1:], saved.files, layer.dim, dtype)
    if (truncation := layer.tokenizer.truncation) is not None:
        fields |= {"longest": int(truncation["max_length"]), "longest_from": "truncation in tokenizer.json"}
    return fields


def _splade(saved: SavedFolder) -> tuple[str, str]:
    """Read the pooling and the activation of sparse vectors."""
    settings, files = saved.modules[1].settings, saved.files.inside(saved.modules[1].path)
    names = {"pooling_strategy": ("max", "sum"), "activation_function": ("relu", "log1p_relu")}
    files.check_keys(settings, (*names, "embedding_dimension", "word_embedding_dimension", "chunk_size"))
    for name, known in names.items():
        if (value := settings.get(name, known[0])) not in known:
            raise files.refuse(f"{name!r} must be {' or '.join(map(repr, known))}, found {value!r}")
    pooling, activation = (settings.get(name, known[0]) for name, known in names.items())
    return pooling, activation


def _pooling(saved: SavedFolder, dim: int) -> dict[str, Any]:
    """Read the pooling."""
    settings, files = saved.modules[1].settings, saved.files.inside(saved.modules[1].path)
    files.check_keys(settings, ("embedding_dimension", "pooling_mode", "include_prompt"))
    if (width := settings.get("embedding_dimension")) != dim:
        raise files.refuse(f"config.json pools vectors of {width!r} numbers, but this model's have {dim}")
    named = settings.get("pooling_mode", "mean")
    poolings = tuple(named) if isinstance(named, list) else (named,)
    unknown = [name for name in poolings if not isinstance(name, str) or name not in POOLINGS]
    if unknown or not poolings:
        raise files.refuse(f"pooling {unknown or named!r} is not known; known are {', '.join(POOLINGS)}")
    return {"poolings": poolings, "include_prompt": files.flag(settings, "include_prompt", True)}


# -- the settings ------------------------------------------------------------------------------------------------


def _check_settings(settings: dict[str, Any], saved: SavedFolder) -> None:
    """Refuse settings of the transformer that change the result and are not computed here."""
    files, use = saved.beside, saved.kind
    task, gives, name = TASKS[use]
    forward = [{"method": "forward", "method_output_name": output} for output in (gives, [gives])]
    neutral: dict[str, Sequence[Any]] = {  # key -> values that change nothing
        "transformer_task": (task,), "module_output_name": (name,),
        "processing_kwargs": (None, {}), "unpad_inputs": (None, True, False), "query_expansion": (None,),
    }  # fmt: skip
    read = {"max_seq_length", "do_lower_case", "query_length", "document_length", *["query_expansion"] * (use == MULTI)}
    masked = bool(saved.modules) and saved.modules[0].kind == "MLMTransformer"
    usual = "fill-mask" if masked else "feature-extraction"  # the default
    for key, value in ({"transformer_task": usual} | settings).items():
        if key in ARGUMENTS:
            if not isinstance(value, dict | None):
                raise files.refuse(f"the transformer's {key!r} must be arguments by name, found {value!r}")
            known = (*IGNORED, *["model_max_length"] * (key in TOKENIZER_ARGUMENTS))
            left = [x for x, y in (value or {}).items() if x not in known and not (x in DTYPES and y in FORMATS)]
            if left:
                raise files.refuse(f"the transformer's {key!r} has {', '.join(map(repr, left))}, not known here")
        elif key == "modality_config" and isinstance(value, dict) and "message" not in value:
            # images and the like beside a text are not read; "message" would write each text into a chat template
            if value.get("text") not in forward:
                raise files.refuse(f"{key!r} computes texts by {value.get('text')!r}, expected {forward[0]!r}")
        elif key not in read and value not in neutral.get(key, ()):
            raise files.refuse(f"the transformer's setting {key!r} is {value!r}, which is not computed here in a {use}")


def _lengths(settings: dict[str, Any], saved: SavedFolder, config: Config, longest: int | None) -> dict[str, Any]:
    """Read the maximum number of tokens and where it is set: the transformer's settings, else the tokenizer's,
    up to the config's positions; never more than the position table has."""
    tokenizer, files, named = saved.tokenizer, saved.beside, saved.transformer_file
    arguments: dict[str, Any] = next((settings[key] for key in TOKENIZER_ARGUMENTS if settings.get(key)), {})
    if arguments.get("model_max_length", 1) is None:  # no limit for transformers, not even the position table
        raise files.refuse(f"model_max_length in {named} must be an integer >= 1, found None")
    limits = files.length(named, arguments, "model_max_length") or files.length(named, settings, "max_seq_length")
    if not limits:
        limits = files.length(TOKENIZER, tokenizer, "model_max_length", "max_len")  # the newer and the older name
        positions = config.get("max_position_embeddings")  # without a table if queries and keys are rotated
        if type(positions) is int and positions >= 1:  # -1: no limit
            limits.append((positions, "max_position_embeddings in config.json"))
    if longest is not None:
        limits.append((longest, "the position table"))
    limit, source = min(limits, key=lambda pair: pair[0], default=(None, ""))
    model_max_length: Any = tokenizer.get("model_max_length")
    tasks = ((task, files.length(named, settings, f"{task}_length")) for task in ("query", "document"))
    lengths = {task: min(most, longest or most) for task, stated in tasks for most, _ in stated}
    tokenizer_length = int(model_max_length) if is_length(model_max_length) else None
    return dict(longest=limit, longest_from=source, lengths=lengths, tokenizer_length=tokenizer_length)


def _prompts(saved: SavedFolder) -> dict[str, Any]:
    """Read config_sentence_transformers.json: prompts, measure, and the number of dimensions to keep."""
    kind, files, settings = saved.kind, saved.files, saved.settings
    stored = settings.get("prompts") or {}
    if not isinstance(stored, dict) or not all(isinstance(text, str | None) for text in stored.values()):
        raise files.refuse(f"{SETTINGS}: 'prompts' must be texts by name, found {stored!r}")
    usual = {} if kind == PAIRS else {"query": "", "document": ""}
    prompts = usual | {name: text or "" for name, text in stored.items()}
    default = settings.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise files.refuse(f"{SETTINGS}: 'default_prompt_name' is {default!r}; the prompts are {', '.join(prompts)}")
    named, usually = settings.get("similarity_fn_name"), {SPARSE: "dot", MULTI: "maxsim"}.get(kind)
    similarity = named if named in tuple(MAXSIMS if kind == MULTI else SIMILARITIES) else usually
    if kind not in (MULTI, PAIRS) and named not in (None, similarity):  # PyLate's folders name another
        problem = f"'similarity_fn_name' is {named!r}, none of {', '.join(SIMILARITIES)}"
        compared = f"vectors are compared by {usually or 'cosine'}, as in sentence-transformers"
        warn(f"{files.where}: {SETTINGS}: {problem}; {compared}")
    sizes = {key: files.length(SETTINGS, settings, key) for key in ("truncate_dim", "max_active_dims")}
    activation = settings.get("activation_fn")
    if not isinstance(activation, str | None):
        raise files.refuse(f"{SETTINGS}: 'activation_fn' must be the path of a class, found {activation!r}")
    return {
        "prompts": prompts, "default_prompt": default, "similarity": similarity, "activation": activation,
        **{key: size[0][0] if size else None for key, size in sizes.items()},
    }  # fmt: skip


# -- options of `load_encoder` ------------------------------------------------------------------------------------


class SentenceOptions(NamedTuple):
    """See `load_encoder`; None: the folder's setting."""

    prompts: Mapping[str, str] | None = None
    default_prompt_name: str | None = None
    truncate_dim: int | None = None
    similarity_fn_name: str | None = None
    max_seq_length: int | None = None

    def passed(self) -> dict[str, Any]:
        """Return the options that were passed."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def checked(self) -> SentenceOptions:
        """Return plain values. Raises TypeError and ValueError for values that cannot be saved in a folder."""
        prompts, measure = self.prompts, self.similarity_fn_name
        texts: Any = {} if prompts is None else prompts
        if not isinstance(texts, Mapping) or not all(isinstance(x, str) for pair in texts.items() for x in pair):
            raise error_of(TypeError, Option("prompts"), f" must be texts by name, found {prompts!r:.80}")
        if not isinstance(name := self.default_prompt_name, str | None):
            raise error_of(TypeError, Option("default_prompt_name"), f" must be a str, found {name!r}")
        check_positive("truncate_dim", self.truncate_dim, or_none=True)
        check_positive("max_seq_length", self.max_seq_length, or_none=True)
        measure = getattr(measure, "value", measure)  # sentence-transformers has an enum of measures
        if measure is not None and measure not in (*SIMILARITIES, *MAXSIMS):
            known = ", ".join((*SIMILARITIES, *MAXSIMS))
            raise error_of(ValueError, Option("similarity_fn_name"), f" must be one of {known}, found {measure!r}")
        return self._replace(prompts=None if prompts is None else dict(texts), similarity_fn_name=measure)

    def applied_to(self, folder: SentenceConfig) -> SentenceConfig:
        """Return the folder's settings with these options, except `max_seq_length`, which an encoder checks.

        Prompts of the folder stay unless one with the same name is passed. Raises ValueError for an option without
        effect on a folder of this class, and for an unknown default prompt.
        """
        without = {PAIRS: ("truncate_dim", "similarity_fn_name"), SPARSE: ("truncate_dim",), MULTI: ("truncate_dim",)}
        for name in set(without.get(folder.kind, ())) & self.passed().keys():
            raise error_of(ValueError, Option(name), f" has no effect on a {folder.kind}; leave it out")
        measure, known_here = self.similarity_fn_name, tuple(MAXSIMS if folder.result == "tokens" else SIMILARITIES)
        if measure is not None and measure not in known_here:
            problem = f" of this model must be one of {', '.join(known_here)}, found {measure!r}"
            raise error_of(ValueError, Option("similarity_fn_name"), problem)
        prompts = {**folder.prompts, **(self.prompts or {})}
        default = folder.default_prompt if self.default_prompt_name is None else self.default_prompt_name
        if default is not None and default not in prompts:
            problem = f" must be one of the prompts {', '.join(map(repr, prompts)) or 'none'}, found {default!r}"
            raise error_of(ValueError, Option("default_prompt_name"), problem)
        dim = folder.truncate_dim if self.truncate_dim is None else self.truncate_dim
        similarity = measure or folder.similarity
        return folder._replace(prompts=prompts, default_prompt=default, truncate_dim=dim, similarity=similarity)


AS_THE_FOLDER_SAYS = SentenceOptions()


def accept_habits(load_encoder: Callable[..., Any], habits: Mapping[str, Any]) -> None:
    """Accept arguments of sentence-transformers that change nothing here. Raises TypeError for any other."""
    for name, value in habits.items():
        if name not in HABITS:
            raise unexpected(load_encoder, name)
        if value not in HABITS[name] and str(value) not in HABITS[name]:  # torch.device("cpu") is "cpu"
            known = " or ".join(map(repr, HABITS[name]))
            raise TypeError(f"load_encoder: {name} must be {known}, found {value!r:.80}; {PAGE}")
