"""`Sentences`: vectors of texts, as sentence-transformers computes them for the same folder; options of `encode`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.quantization import STEPS, check_precision, quantized
from minibert.equations.sentences import Matrix, Vector
from minibert.errors import CheckpointError, warn
from minibert.files.tokenizer import Texts, Tokenizer, listed
from minibert.models.model import Model
from minibert.models.run.attributes import check_positive, hinted, unexpected
from minibert.models.run.pipeline import TextPipeline, chunked
from minibert.threads.computing import checked_threads, cores

from .comparing import Given, similarity, similarity_pairwise
from .late import LatePipeline
from .sentence_config import Result, SentenceConfig

if TYPE_CHECKING:
    from typing_extensions import Unpack

S = TypeVar("S", bound="Sentences")
P = TypeVar("P", bound=TextPipeline)
F = TypeVar("F", bound=Callable[..., Any])
Prompt = str | None  # its name, then its text
OfText = Literal["sentence_embedding"]
Tokens = Literal["token_embeddings"]
OUTPUTS = ("sentence_embedding", "token_embeddings")
KNOWN: Mapping[str, tuple[Any, ...]] = {  # option -> the values that are accepted
    "convert_to_numpy": (True,), "convert_to_tensor": (False,), "device": (None, "cpu"), "output_value": OUTPUTS,
    "task": (None, "query", "document"),
}  # fmt: skip
OF_ARRAYS = ("convert_to_numpy", "convert_to_tensor", "device")  # their other values mean tensors, or another device
ENOUGH = 100  # vectors; int8 and uint8 take their ranges from fewer with a warning


# -- options -----------------------------------------------------------------------------------------------------


class TextOptions(TypedDict, total=False):
    """Options of every method that takes texts, by the names of sentence-transformers."""

    prompt_name: str | None
    """The name of a prompt of the folder, put before each text, or each pair's first; None: the folder's default."""
    prompt: str | None
    """A text put before each text; `prompt_name` then has no effect."""
    batch_size: int
    """No effect: texts are split by their tokens, about 512 at once or one text."""
    show_progress_bar: bool | None
    """Show a bar of texts on stderr."""


class EncodeOptions(TextOptions, total=False):
    """Options of `encode` beside `output_value`."""

    precision: str | None
    """"float16", "int8", "uint8", "binary" or "ubinary" quantizes finished vectors of texts: see
    `equations.quantized`."""
    convert_to_numpy: Literal[True]
    """Only True is accepted, as only False for `convert_to_tensor`, and None or "cpu" for `device`."""
    convert_to_tensor: Literal[False]
    device: Any
    normalize_embeddings: bool
    """Scale each vector to length 1, after `truncate_dim`."""
    truncate_dim: int | None
    """Keep only the first numbers of each vector, this many."""
    task: str | None
    """"query" or "document" truncates at that task's longest length, if the folder has one."""
    threads: int | None
    """The largest number of threads; by default that of `load_encoder`."""
    ranges: ArrayLike | None
    """(2, dim), the ranges of int8 and uint8, as `equations.ranges_of` gives them of many vectors; by default the
    ranges of this call's vectors, with a warning for fewer than 100."""


ENCODE: Mapping[str, Any] = {
    "prompt_name": None, "prompt": None, "batch_size": 32, "show_progress_bar": None, "output_value": OUTPUTS[0],
    "precision": "float32", "convert_to_numpy": True, "convert_to_tensor": False, "device": None,
    "normalize_embeddings": False, "truncate_dim": None, "task": None, "threads": None, "ranges": None,
}  # fmt: skip
"""The defaults, in sentence-transformers' order."""


def shows(defaults: Mapping[str, Any], options: type[Any]) -> Callable[[F], F]:
    """Show the options in a signature, in place of `**options`, and of `*args` if there is one: `help` reads it."""
    types = {"output_value": "str", **{name: hint.__forward_arg__ for name, hint in options.__annotations__.items()}}

    def show(method: Any) -> Any:
        *others, _ = signature(method).parameters.values()
        names = [parameter.name for parameter in others]
        place = names.index("args") if "args" in names else len(names)
        kind = Parameter.POSITIONAL_OR_KEYWORD if "args" in names else Parameter.KEYWORD_ONLY
        shown = [Parameter(name, kind, default=value, annotation=types[name]) for name, value in defaults.items()]
        method.__signature__ = signature(method).replace(parameters=[*others[:place], *shown, *others[place + 1 :]])
        return method

    return show


def like(method: F) -> Callable[[Callable[..., Any]], F]:
    """Copy the types and the signature of a method to another."""

    def show(other: Any) -> F:
        other.__signature__ = signature(method)
        return cast("F", other)

    return show


def complete(
    defaults: Mapping[str, Any], method: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all options of a call, in order. Raises TypeError for an option that its method does not take."""
    for name in sorted(named.keys() - defaults.keys()):
        raise unexpected(method, name)
    placed = dict(zip(defaults, args, strict=False))
    if len(args) > len(defaults) or (twice := placed.keys() & named.keys()):
        problem = f"found {len(args)}" if len(args) > len(defaults) else f"{', '.join(twice)} is there twice"
        raise TypeError(f"{method.__name__}: takes at most {len(defaults)} options by position, {problem}")
    return {**defaults, **placed, **named}


def check_options(options: Mapping[str, Any], late: bool = False) -> None:
    """Check the values of options. late: the model computes vectors of tokens. Raises ValueError."""
    check_positive("batch_size", options["batch_size"])
    for name, known in KNOWN.items():
        value = options.get(name, known[0])
        word = value if isinstance(value, str) else str(value)  # torch.device("cpu") is "cpu"
        if not any(value is accepted or word == accepted for accepted in known):
            *others, last = map(repr, known)
            expected = f"{', '.join(others)} or {last}" if others else last
            advice = ": this encoder gives NumPy arrays on the CPU; leave it out" if name in OF_ARRAYS else ""
            raise ValueError(f"{name} must be {expected}, found {value!r}{advice}")
    check_positive("truncate_dim", options.get("truncate_dim"), or_none=True)
    if late and options["truncate_dim"] is not None:
        raise ValueError("truncate_dim is for sentence vectors, and this model gives a vector for each token")
    if (precision := options.get("precision")) is not None:
        check_smaller(precision, OUTPUTS[1] if late else options["output_value"])
    if options.get("ranges") is not None and precision not in STEPS:
        raise ValueError(f"ranges are for precision int8 or uint8, found {precision!r}; leave them out")


def given_once(expected: str, **arguments: Any) -> Any:
    """Return an argument that has several names. Raises TypeError unless exactly one is used."""
    values = [value for value in arguments.values() if value is not None]
    if len(values) != 1:
        names, count = ", ".join(arguments), len(values) or "none"
        raise TypeError(f"{next(iter(arguments))} must be {expected}, passed once, as {names}; found {count}")
    return values[0]


def check_smaller(precision: str, output_value: str) -> None:
    """Raise ValueError for an unknown precision, and for any but float32 of tokens."""
    check_precision(precision)
    if precision != "float32" and output_value == OUTPUTS[1]:
        raise ValueError(f"precision {precision!r} is for sentence vectors; leave it out with {OUTPUTS[1]}")


def quantize(vectors: Array, precision: str, ranges: ArrayLike | None = None) -> Array:
    """Quantize vectors; warn if int8 or uint8 takes its ranges from few vectors. Raises as `quantized`."""
    if ranges is None and (warning := warn_few_vectors(precision, len(vectors))):
        warn(f"{warning}; pass ranges, as equations.ranges_of gives them of others")
    return quantized(vectors, precision, ranges)


def warn_few_vectors(precision: str, count: int) -> str:
    """Return the warning that ranges come from few vectors, or ""."""
    few = precision in STEPS and 1 < count < ENOUGH
    return f"{precision} takes its ranges from {count} vectors; {ENOUGH} or more make better ones" if few else ""


# -- the model ---------------------------------------------------------------------------------------------------


class _NoModelCard:
    """A model card for sentence-transformers' evaluators, which drops what they write into it."""

    def set_evaluation_metrics(self, *args: Any) -> None:
        """Do nothing: the evaluator also returns its metrics."""


class Sentences(Model):
    """A model whose folder says how texts become vectors."""

    settable = ("max_seq_length",)
    device = "cpu"
    model_card_data = _NoModelCard()

    def __init__(self, *model: Any, sentence_config: SentenceConfig, **options: Any) -> None:
        super().__init__(*model, **options)
        self._sentence_config = sentence_config
        self._length_set = False
        self._changed_tokenizer: Tokenizer | None = None
        self._last: tuple[Any, tuple[Any, ...], Any] = None, (), None

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens per text, with special tokens; `encode` truncates longer texts. None: no limit.

        The folder sets it. A caller can set any integer from 1 to `max_length`, or None for `max_length`. A running
        call keeps the length it began with. `pickle` and `copy.deepcopy` keep a length that was set. If the folder has
        a length for the task of `encode_query` or `encode_document`, that length is used.

        Raises ValueError for a length beyond the position table, or for anything but an integer >= 1.
        """
        return self.sentence_config.longest

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        limit = self.max_length
        if length is not None:
            check_positive("max_seq_length", length)
            if limit is not None and length > limit:
                raise ValueError(f"max_seq_length must be at most {limit}, the position table's rows; found {length}")
        source = "the position table" if length is None else "max_seq_length, which was set"
        longest = limit if length is None else int(length)
        self._sentence_config = self.sentence_config._replace(longest=longest, longest_from=source)
        self._length_set = True  # for `pickle`

    def get_embedding_dimension(self) -> int:
        """The width of `encode`'s vectors. A token's vector before pooling has `dim`."""
        settings = self.sentence_config
        return settings.dim if self.result == "tokens" else settings.width()

    @property
    def result(self) -> Result:
        """The kind of result: "dense", one vector per text; "tokens", one per token; "sparse"; or "scores" of pairs."""
        return self.sentence_config.result

    @property
    def prompts(self) -> Mapping[str, str]:
        """The folder's prompts, name -> the text put before each text; "query" and "document" are always there."""
        return MappingProxyType(dict(self.sentence_config.prompts))

    @overload
    def encode(
        self, texts: str, *named: Prompt, output_value: OfText = ..., **options: Unpack[EncodeOptions]
    ) -> Vector: ...
    @overload
    def encode(
        self, texts: Iterable[str], *named: Prompt, output_value: OfText = ..., **options: Unpack[EncodeOptions]
    ) -> Matrix: ...
    @overload
    def encode(self, texts: str, *named: Prompt, output_value: Tokens, **options: Unpack[EncodeOptions]) -> Matrix: ...
    @overload
    def encode(
        self, texts: Iterable[str], *named: Prompt, output_value: Tokens, **options: Unpack[EncodeOptions]
    ) -> list[Matrix]: ...
    @overload  # by another name of `texts`, or with more options by their position
    def encode(
        self,
        texts: Texts | None = None,
        *args: Any,
        inputs: Texts | None = None,
        sentences: Texts | None = None,
        output_value: OfText | Tokens = ...,
        **options: Unpack[EncodeOptions],
    ) -> Any: ...

    @shows(ENCODE, EncodeOptions)
    def encode(
        self, texts: Texts | None = None, *args: Any, inputs: Any = None, sentences: Any = None, **options: Any
    ) -> Any:
        """Turn texts into vectors as sentence-transformers does: one str -> (dim,), many -> (n, dim), none -> (0, dim).

        The options are in `EncodeOptions`. They are passed by name, or in sentence-transformers' order: `prompt_name`,
        `prompt`, `batch_size`, `show_progress_bar`, `output_value`, `precision`, ... Its names for `texts` work too:
        `inputs`, and the older `sentences`. output_value="token_embeddings" returns the vectors of each text's tokens
        before pooling, a list of (tokens, dim).

        The folder says how to compute vectors: modules.json lists pooling, dense layers and norms; other files have
        the prompts and the longest length. A longer text is truncated: see `tokens_cut`. Identical texts within 512 are
        encoded once. Without modules.json a vector is the mean over the tokens. With the folder of a MultiVectorEncoder
        the result is a list of (tokens, dim), as of `encode_document`.

        Weights stored as float16 or bfloat16 are converted to float32 and the vectors computed in it, whatever
        `torch_dtype` the folder names. sentence-transformers computes in that narrow format by default; on MiniLM its
        numbers then differ by up to 6e-4 (float16) and 4e-3 (bfloat16) of the vector's length.

        The texts of the same call may change each number by 1e-6 of the vector's length (measured on MiniLM: 2.6e-7),
        and so may threads of BLAS: see `same_bits` of `load_encoder`.

        Raises TypeError for anything but text and for an unknown option, ValueError for an unknown value or prompt,
        TokenizerError if there is no tokenizer.
        """
        merged = {**ENCODE, **options}
        if args or len(merged) > len(ENCODE):
            merged = complete(ENCODE, self.encode, args, options)
        settings, last, pipeline = self._last
        if settings is not self._sentence_config or not all(map(is_, merged.values(), last)):
            settings = self.sentence_config
            if settings.result in ("sparse", "scores"):
                settings.check_use("SentenceTransformer")
            pipeline = self.pipeline(**merged)
            self._last = settings, tuple(merged.values()), pipeline  # the next call with these options skips the checks
        if texts is None or inputs is not None or sentences is not None:
            texts = given_once("a str or a list of str", texts=texts, inputs=inputs, sentences=sentences)
        items = listed(texts)
        vectors = pipeline.all(items, "encode" if merged["show_progress_bar"] else "")
        if merged["precision"] not in (None, "float32"):
            vectors = quantize(vectors, merged["precision"], merged["ranges"])
        return vectors[0] if isinstance(texts, str) else vectors

    @like(encode)
    def encode_query(
        self, texts: Texts | None = None, prompt_name: Prompt = None, prompt: Prompt = None, *args: Any, **options: Any
    ) -> Any:
        """Encode queries: with the folder's prompt "query", and never its default prompt.

        Many folders have no such prompt; then this is `encode` without a prompt. `prompts` and `minibert info` list the
        prompts; `load_encoder(prompts=...)` adds to them. With a SparseEncoder's folder the result is sparse vectors,
        as of `encode_sparse`. With a MultiVectorEncoder's it is one array (tokens, dim) for each text; the mask tokens
        that pad a query have rows in it.
        """
        return self._for_task("query", texts, prompt_name, prompt, args, options)

    @like(encode)
    def encode_document(
        self, texts: Texts | None = None, prompt_name: Prompt = None, prompt: Prompt = None, *args: Any, **options: Any
    ) -> Any:
        """Encode documents for a search: as `encode_query`, with the prompt "document"."""
        return self._for_task("document", texts, prompt_name, prompt, args, options)

    def _for_task(self, task: str, texts: Any, prompt_name: Prompt, prompt: Prompt, args: Any, options: Any) -> Any:
        prompt_name = task if prompt_name is None and prompt is None else prompt_name
        return self._encode(texts, prompt_name, prompt, *args, **{"task": task, **options})

    def _encode(self, *texts: Any, **options: Any) -> Any:
        return self.encode(*texts, **options)

    @overload
    def tokens_cut(self, texts: str, prompt_name: Prompt = ..., prompt: Prompt = ..., task: Prompt = ...) -> int: ...
    @overload
    def tokens_cut(
        self, texts: Iterable[str], prompt_name: Prompt = ..., prompt: Prompt = ..., task: Prompt = ...
    ) -> Vector: ...

    def tokens_cut(self, texts: Any, prompt_name: Prompt = None, prompt: Prompt = None, task: Prompt = None) -> Any:
        """Count the tokens of each text that `encode` truncates: one str -> an int, many -> (n,) int64.

        A text with its prompt and the special tokens is truncated at `max_seq_length`. `prompt_name="query",
        task="query"` counts for `encode_query`. Raises as `encode`.
        """
        counts: list[int] = []
        pipeline = self.pipeline(prompt_name, prompt, task=task)
        for chunk in chunked(listed(texts), pipeline.chunk):
            counts += [sequence.truncated for sequence in pipeline.tokenize(chunk, len(counts))]
        return counts[0] if isinstance(texts, str) else np.array(counts, np.int64)

    def pipeline(self, *args: Any, single_threaded: bool = False, **options: Any) -> TextPipeline:
        """Return the pipeline of `encode`, for callers with their own loop. Options and errors are as in `encode`.

        single_threaded: no bit of a vector depends on `threads`, even of a single text: see `computing.compute`.
        """
        settings, options = self.sentence_config, complete(ENCODE, self.encode, args, options)
        check_options(options, settings.late is not None)
        if elsewhere := self.block_family.elsewhere:
            problem = f"sentence-transformers makes vectors of a {self.embeddings.family.model_type} from {elsewhere}"
            advice = "which is not computed here; the encoder's own hidden states are what a call gives"
            raise CheckpointError(f"{problem}, {advice}")
        # raises if the folder is for another use
        dim = None if settings.late else settings.width(options["truncate_dim"])
        steps = self.text_steps(options, single_threaded)
        if settings.late:
            steps |= settings.late.steps_of(steps["tokenizer"], options["task"])
            return self.pipeline_of(LatePipeline, **steps, normalize=options["normalize_embeddings"])
        if options["output_value"] == OUTPUTS[1]:
            return self.pipeline_of(TextPipeline, **steps)
        return self.pipeline_of(
            TextPipeline, **steps, dim=dim, poolings=settings.poolings, picks=settings.picks, after=settings.after,
            skip=self._prompt_tokens(steps["prompt"]), normalize=options["normalize_embeddings"],
        )  # fmt: skip

    def text_steps(self, options: Mapping[str, Any], single_threaded: bool = False) -> dict[str, Any]:
        """Return the attributes of a `TextPipeline` for tokenizing, and its threads."""
        settings, task = self.sentence_config, options["task"]
        table = settings.table(task)
        return {
            "tokenizer": table.tokenizer() if table else self.sentence_tokenizer,
            "prompt": settings.prompt(options["prompt_name"], options["prompt"]),
            "longest": table.longest if table else settings.lengths.get(task or "", settings.longest),
            "threads": options["threads"], "single_threaded": single_threaded,
        }  # fmt: skip

    def _prompt_tokens(self, prompt: str) -> int:
        """Count the prompt's tokens, which are first in each text and not pooled; 0 if they are pooled."""
        settings, tokenizer = self.sentence_config, self.sentence_tokenizer
        if not prompt or settings.include_prompt:
            return 0
        ((ids, *_),) = tokenizer.encode([prompt], None, truncation=True, max_length=settings.longest)
        return len(ids) - (bool(ids) and tokenizer.is_special(ids[-1]))  # a text comes before the last special token

    def pipeline_of(self, kind: type[P], threads: int | None = None, **steps: Any) -> P:
        """Make a pipeline of this model; `steps` are its attributes."""
        threads = self.threads if threads is None else checked_threads(threads)
        tokenizer = steps.pop("tokenizer") if "tokenizer" in steps else self.sentence_tokenizer
        layer, stack = self.embeddings, self.stack
        return kind(
            tokenizer, self.dtype, layer=layer, stack=stack, max_length=layer.max_length, threads=threads,
            chunk_threads=1 if stack.blocks else threads or cores(), **steps,
        )  # fmt: skip

    @hinted
    def similarity(self, embeddings1: Given, embeddings2: Given) -> Array:
        """Compare vectors by the folder's measure, or by cosine if it names none: (n, dim), (m, dim) -> (n, m).

        One vector (dim,) counts as (1, dim). The larger, the more alike: "euclidean" and "manhattan" are negative.
        Lists of `SparseVector` are compared by dot product if the folder names no measure; token vectors, queries
        first, by `equations.sentences.maxsim`: a list of (tokens, dim), or one array.

        Raises TypeError for anything but vectors; ValueError for vectors of different widths, for a vector with NaN or
        infinity, and for packed bits (integers of an eighth of the model's width or less), which `minibert.search`
        compares.
        """
        return similarity(self.sentence_config.similarity, embeddings1, embeddings2, self.sentence_config.dim)

    @hinted
    def similarity_pairwise(self, embeddings1: Given, embeddings2: Given) -> Any:
        """Compare the i-th vectors of both by the folder's measure: (n, dim), (n, dim) -> (n,).

        One vector (dim,) is compared with each vector of the second argument; two single vectors return one number.
        Raises as `similarity`, and ValueError if both have several vectors, but in different numbers.
        """
        return similarity_pairwise(self.sentence_config.similarity, embeddings1, embeddings2, self.sentence_config.dim)

    @property
    def sentence_config(self) -> SentenceConfig:
        """The folder's settings of sentence vectors."""
        self.stack  # noqa: B018  raises if the encoder is closed
        return self._sentence_config

    @property
    def sentence_tokenizer(self) -> Tokenizer:
        """The tokenizer with the folder's changes: lowercased texts, prefixes as one token each."""
        settings = self.sentence_config
        if self._changed_tokenizer is None:
            tokenizer = self.embeddings.tokenizer
            tokenizer = tokenizer.lowercased() if settings.lower_case else tokenizer
            self._changed_tokenizer = tokenizer.with_whole(settings.late.prefixes if settings.late else ())
        return self._changed_tokenizer

    def with_settings(self: S, tokenizer: Tokenizer | None = None, **changes: Any) -> S:
        """Return a model with the same weights, but other fields of `SentenceConfig` or another tokenizer.

        Closing one does not close the other.
        """
        model, settings = object.__new__(type(self)), self.sentence_config._replace(**changes)
        vars(model).update(vars(self), _sentence_config=settings, _changed_tokenizer=tokenizer, _last=(None, (), None))
        return model

    def close(self) -> None:
        """Drop all weights. Returned arrays stay valid; later calls raise ValueError. Closing twice is fine."""
        super().close()
        self._sentence_config, self._changed_tokenizer = SentenceConfig(), None  # the weights of its dense layers too
        self._last = None, (), None

    # -- names of sentence-transformers ------------------------------------------------------------------------------

    @property
    def similarity_fn_name(self) -> str:
        """The measure of `similarity`, set by the folder or by `load_encoder`."""
        return self.sentence_config.measure

    @property
    def default_prompt_name(self) -> str | None:
        """The name of the prompt that `encode` puts before texts if none is named."""
        return self.sentence_config.default_prompt

    @property
    def truncate_dim(self) -> int | None:
        """The count of first numbers that a vector keeps; None: all."""
        return self.sentence_config.truncate_dim

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, as the folder changes it. Raises TokenizerError if there is none."""
        return self.sentence_tokenizer

    def get_max_seq_length(self) -> int | None:
        """The same as `max_seq_length`."""
        return self.max_seq_length

    def get_sentence_embedding_dimension(self) -> int:
        """The same as `get_embedding_dimension`, by its older name."""
        return self.get_embedding_dimension()
