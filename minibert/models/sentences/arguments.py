"""The arguments of `encode` and its kin, by the names of sentence-transformers, and the checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, TypeVar, cast

from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.quantization import STEPS, check_precision, quantized
from minibert.errors import warn
from minibert.models.run.attributes import unexpected
from minibert.models.run.pipeline import check_positive

OUTPUTS = ("sentence_embedding", "token_embeddings")
KNOWN: Mapping[str, tuple[Any, ...]] = {  # option -> its values
    "convert_to_numpy": (True,), "convert_to_tensor": (False,), "device": (None, "cpu"), "output_value": OUTPUTS,
    "task": (None, "query", "document"),
}  # fmt: skip
OF_ARRAYS = ("convert_to_numpy", "convert_to_tensor", "device")  # of these what another value asks for
PAGE = 'the page "from sentence-transformers" says what takes its place'
ENOUGH = 100  # vectors, of which int8 and uint8 may take their ranges without a word
Asked = TypeVar("Asked", "EncodeOptions", "PredictOptions")
F = TypeVar("F", bound=Callable[..., Any])


class EncodeOptions(NamedTuple):
    """The options of `encode`, in sentence-transformers' order; by name as well."""

    prompt_name: str | None = None
    """One of the folder's prompts, put before each text; without it the folder's default, if it has one."""
    prompt: str | None = None
    """A text put before each text; `prompt_name` is then without effect."""
    batch_size: int = 32
    """Without effect: work is split by tokens, about 512 at once or one text."""
    show_progress_bar: bool | None = None
    """A bar of texts on stderr."""
    output_value: str = OUTPUTS[0]
    """"token_embeddings" gives for each text its tokens' vectors (tokens, dim) before pooling, in a list."""
    precision: str | None = "float32"
    """"float16", "int8", "uint8", "binary" or "ubinary" quantizes finished vectors of texts: see
    `equations.quantized`."""
    convert_to_numpy: bool = True
    """Only True is accepted, as only False for `convert_to_tensor`, and None or "cpu" for `device`."""
    convert_to_tensor: bool = False
    device: Any = None
    normalize_embeddings: bool = False
    """Scale each vector to length 1, after `truncate_dim`."""
    truncate_dim: int | None = None
    """Keep this number of each vector's first numbers."""
    task: str | None = None
    """"query" or "document" takes their longest length where the folder has one."""
    threads: int | None = None
    """The largest number of threads; None for the number that `load_encoder` was told."""
    ranges: ArrayLike | None = None
    """(2, dim), the ranges of int8 and uint8, as `equations.ranges_of` gives them of many vectors; without them the
    ranges of this call's vectors, with a warning where these are fewer than 100."""

    def check(self, late: bool = False) -> None:
        """Refuse values that no call computes. `late`: of a model that gives vectors of tokens. Raises ValueError."""
        check_known(self)
        check_positive("truncate_dim", self.truncate_dim, or_none=True)
        if late and self.truncate_dim is not None:
            raise ValueError("truncate_dim is for sentence vectors, and this model gives a vector for each token")
        if self.precision is not None:
            check_smaller(self.precision, OUTPUTS[1] if late else self.output_value)
        if self.ranges is not None and self.precision not in STEPS:
            raise ValueError(f"ranges are for precision int8 or uint8, found {self.precision!r}; leave them out")


class PredictOptions(NamedTuple):
    """The options of `predict`, in sentence-transformers' order; by name as well."""

    prompt_name: str | None = None
    """As in `encode`; put before the first text of each pair, and so is `prompt`."""
    prompt: str | None = None
    batch_size: int = 32
    """Without effect, as in `encode`."""
    show_progress_bar: bool | None = None
    activation_fn: Any = None
    """Instead of the folder's: a function of the logits (n, labels), such as lambda x: x."""
    apply_softmax: bool = False
    """Over several labels, after the activation."""
    convert_to_numpy: bool = True
    """This and the next two as in `encode`."""
    convert_to_tensor: bool = False
    device: Any = None
    threads: int | None = None
    """As in `encode`."""


def shows(options: type[Any]) -> Callable[[F], F]:
    """Name the options in a method's signature, in the place of `*given` and `**options`: `help` shows them there."""
    named = signature(options).parameters.values()
    shown = [each.replace(annotation=options.__annotations__[each.name].__forward_arg__) for each in named]

    def show(method: Any) -> Any:
        own = list(signature(method).parameters.values())
        place = [each.name for each in own].index("given")
        method.__signature__ = signature(method).replace(parameters=[*own[:place], *shown, *own[place + 1 : -1]])
        return method

    return show


def like(method: F) -> Callable[[Callable[..., Any]], F]:
    """Give another method the types and the signature of this one."""

    def show(other: Any) -> F:
        other.__signature__ = signature(method)
        return cast("F", other)

    return show


def taken(options: type[Asked], method: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> Asked:
    """Give a method's options. Raises TypeError for one that it does not take."""
    try:
        return options(*given, **named)
    except TypeError as error:
        for name in sorted(named.keys() - signature(options).parameters.keys()):
            raise unexpected(method, name) from None
        raise TypeError(f"{method.__name__}: {str(error).partition('__new__() ')[2]}") from None


def check_known(asked: EncodeOptions | PredictOptions) -> None:
    """Refuse values that no call computes. Raises ValueError."""
    check_positive("batch_size", asked.batch_size)
    for name, known in KNOWN.items():
        found = getattr(asked, name, known[0])
        word = found if isinstance(found, str) else str(found)  # torch.device("cpu") is "cpu"
        if not any(found is each or word == each for each in known):
            *others, last = map(repr, known)
            said = f"{', '.join(others)} or {last}" if others else last
            advice = ": this encoder gives NumPy arrays on the CPU; leave it out" if name in OF_ARRAYS else ""
            raise ValueError(f"{name} must be {said}, found {found!r}{advice}")


def given_once(what: str, **given: Any) -> Any:
    """Give an argument that has several names. Raises TypeError unless one is used."""
    found = [value for value in given.values() if value is not None]
    if len(found) != 1:
        names, count = ", ".join(given), len(found) or "none"
        raise TypeError(f"{next(iter(given))} must be {what}, passed once, as {names}; found {count}")
    return found[0]


def check_smaller(precision: str, output_value: str) -> None:
    """Raises ValueError for an unknown precision, and for another than float32 of tokens."""
    check_precision(precision)
    if precision != "float32" and output_value == OUTPUTS[1]:
        raise ValueError(f"precision {precision!r} is for sentence vectors; leave it out with {OUTPUTS[1]}")


def quantize(vectors: Array, precision: str, ranges: ArrayLike | None = None) -> Array:
    """Quantize vectors; warn where int8 and uint8 take their ranges from few. Raises as `quantized`."""
    if ranges is None and (said := warn_few_vectors(precision, len(vectors))):
        warn(f"{said}; pass ranges, as equations.ranges_of gives them of others")
    return quantized(vectors, precision, ranges)


def warn_few_vectors(precision: str, count: int) -> str:
    """Say that ranges come from few vectors, if so."""
    if precision not in STEPS or not 1 < count < ENOUGH:
        return ""
    return f"{precision} takes its ranges from {count} vectors; {ENOUGH} or more make better ones"
