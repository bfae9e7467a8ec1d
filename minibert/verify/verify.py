"""Does a model compute what the reference computes? The comparison behind `minibert verify` and `minibert.compare`.

A subject, the input layer or the whole encoder, is compared with one counterpart: a port's numbers; else the reference
itself; else the reference's values that ship with the package, for a checkpoint with the same numbers. Two well-known
checkpoints are also compared with numbers that public notebooks print.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.static import STATIC
from minibert.files.writing import same_file
from minibert.models.open.load import is_folder, load
from minibert.models.open.load_encoder import load_encoder
from minibert.models.open.options import OPTIONS
from minibert.models.sentences.sentences import complete, shows
from minibert.threads.computing import on_one_thread

from . import shipped
from .counterparts import Counterpart, Port
from .reference import Reference, installed
from .report import Comparison, Difference, Shares, by_intermediate, by_place, in_float64, over_kinds
from .sources import ONNX, DebugTree, OnnxModel
from .subjects import EncoderSubject, Subject, batches, encoder_batches, keys_of
from .traces import Traces, as_traces, checked, read_traces, write_traces

if TYPE_CHECKING:
    from typing_extensions import Unpack

Against: TypeAlias = "str | os.PathLike[str] | Mapping[str, Array]"
FORMATS = ("float32", "float16", "bfloat16", "q8_0")  # formats in which a port may compute
VECTORS = (".npy", ".jsonl", ".parquet")  # endings of files of vectors; .parquet is refused with an explanation


class CompareOptions(TypedDict, total=False):
    """Options of `compare`; all but `texts` are options of `minibert verify` too."""

    encoder: bool
    """Compare the whole model; False: only its input layer, of one `side`."""
    side: str | None
    texts: Sequence[str]
    """With intermediates: texts that the port computed too, as "text 1" and so on. With vectors: their texts."""
    only: Sequence[str] | None
    """Compare only these intermediates of `against`. By default every intermediate is compared, and a missing one
    fails, as a missing or different input does."""
    tolerance: float
    """Allowed for every intermediate but ids, for a port that computes in float16 on purpose."""
    format: str
    """The format in which the port computes, one of `FORMATS`; in a narrower one each module is computed again, from
    the port's own input."""
    batches: Sequence[str] | None
    """Compare only these batches. By default a file with some of our batches must have all."""
    revision: str | None
    local_files_only: bool


DEFAULTS: Mapping[str, Any] = {
    "encoder": True, "side": None, "texts": (), "only": None, "tolerance": 0.0, "format": FORMATS[0], "batches": None,
    "revision": None, "local_files_only": False,
}  # fmt: skip


@shows(DEFAULTS, CompareOptions)
def compare(
    model: str | os.PathLike[str],
    against: str | os.PathLike[str] | Mapping[str, Array] | Array,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Compare a model with a port's numbers: is the port right, and if not, which mistake is it?

        def test_my_port():
            found = minibert.compare("./model", against=my_port.trace("./model"))
            assert found.passed, str(found)

    model: a folder or a Hub name. against: intermediates, as a file of `minibert verify --save` has them, a dict of
    arrays under the same names ("plain|inputs|input_ids", "plain|sum"), a folder of transformers' debugger, or an ONNX
    model; or vectors, as an array (n, dim) or a file .npy or .jsonl, of `texts` or of the texts that `minibert verify
    --print-texts` prints. The options are in `CompareOptions`.

    Raises TypeError for an argument of another type. An error that ends the command with 2 or 3 is raised too:
    ValueError and OSError if a comparison is not possible, MinibertError for a model that cannot be opened.
    """
    chosen = complete(DEFAULTS, compare, (), options)
    if isinstance(against, str) and not against:
        raise ValueError("against is empty; name a file or a folder")
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model must be a folder or a Hub name, found {type(model).__name__}")
    if not isinstance(against, str | os.PathLike | Mapping | np.ndarray):
        expected = "a path, a dict of arrays, or an array of vectors"
        raise TypeError(f"against must be {expected}, found {type(against).__name__}")
    for name in ("texts", "only", "batches"):
        listed = () if chosen[name] is None else chosen[name]
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not all(isinstance(x, str) for x in listed):
            raise TypeError(f"{name} must be a list of str, found {listed!r}")
    if not isinstance(chosen["tolerance"], int | float):
        raise TypeError(f"tolerance must be a number, found {chosen['tolerance']!r}")
    numbers: Any = Path(against) if isinstance(against, str | os.PathLike) else against
    is_file = isinstance(numbers, Path) and not numbers.is_dir()
    if not isinstance(numbers, np.ndarray) and not (is_file and numbers.suffix.lower() in VECTORS):
        return verify(os.fspath(model), against=numbers, **chosen)
    if chosen["side"] or chosen["only"] or chosen["batches"] or chosen["format"] != FORMATS[0]:
        raise ValueError("side, only, format and batches are for intermediates, not for vectors")
    from .vectors import verify_vectors

    texts = list(chosen["texts"]) or None
    hub = {name: chosen[name] for name in OPTIONS["hub"]}
    return verify_vectors(os.fspath(model), numbers, texts, tolerance=chosen["tolerance"], **hub)


@on_one_thread  # in products this small BLAS's threads mostly wait for each other
def verify(
    model: str, texts: Sequence[str] = (), *, against: Against | None = None, save: Path | None = None, **options: Any
) -> Comparison:
    """Compare a checkpoint's input layer or whole encoder, intermediate by intermediate, with the best reference.

    against: a port's numbers, as `compare` takes them; None: the best reference installed. save: a file for inputs and
    intermediates. The options are those of `compare`, but by default only the input layer is compared.

    Tolerances: `subjects.tolerances` in the input layer, `subjects.IN_BLOCKS` in the blocks. Correct programs differ by
    more in real models: there an intermediate also passes if its error against float64 is about the other program's,
    ours at most `ERROR_SHARE` times the reference's, a file's at most `PORT_SHARE` times ours.

    Raises ValueError if there is nothing to compare with and nothing to save, if `save` is the file to compare with or
    one of the model's own, and for an `only` that the model does not know.
    """
    settings = complete(DEFAULTS, compare, (), {"encoder": False, **options})
    encoder, side, only, tolerance = (settings[name] for name in ("encoder", "side", "only", "tolerance"))
    form, chosen, hub = settings["format"], settings["batches"], {name: settings[name] for name in OPTIONS["hub"]}
    if save is not None and isinstance(against, str | os.PathLike) and same_file(save, against):
        raise ValueError(f"{save} and {against} are one file: saving would overwrite the numbers to compare with")
    if only is not None and (against is None or isinstance(only, str) or not only):
        names = " must list intermediates of a file that is passed as "
        raise error_of(ValueError, Option("only"), names, Option("against"), f", found {only!r}")
    if encoder and side:
        whole = " compares a whole model, which has no sides; leave out "
        raise error_of(ValueError, Option("encoder"), whole, Option("side"))
    if chosen is not None and not chosen:
        raise ValueError(f"batches must name one or be left out, found {chosen!r}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, found {tolerance}")
    if form not in FORMATS or (form != FORMATS[0] and (against is None or not encoder)):
        needs = f" must be one of {', '.join(FORMATS)}, and a narrower one needs "
        found = f"; found {form!r}"
        raise error_of(ValueError, Option("format"), needs, Option("encoder"), " and ", Option("against"), found)
    port = None if against is None else read_against(against)  # before anything is written
    kind: type[Subject] = EncoderSubject if encoder else Subject
    open_model: Callable[..., Any] = load_encoder if encoder else partial(load, side=side, lazy=True)
    open_model = partial(open_model, model, **hub)
    # numbers of a port may be of any size
    with open_model() as opened, np.errstate(all="ignore"), closing(kind(opened, open_model)) as subject:
        ours = encoder_batches(opened) if encoder else batches(opened)
        report = Comparison(f"{model} ({subject.about})")
        if subject.without_head:
            report.say(f"logits not compared: {subject.without_head}")
        only_encoder = encoder and len(subject.layer.family.sides) > 1
        if only_encoder:
            report.say("only the encoder is compared, without a decoder and its logits")
        inputs = ours | {f"text {i}": dict(opened.tokenize(text)) for i, text in enumerate(texts, 1)}
        recorded, theirs = ({}, {}) if port is None else port.read(subject, inputs)
        if chosen is not None:
            known = [*dict.fromkeys([*inputs, *recorded, *theirs])]
            if unknown := [kind for kind in chosen if kind not in known]:
                raise ValueError(f"there is no batch {unknown[0]!r}; there are {', '.join(known)}")
            inputs, recorded, theirs = (
                {kind: batch for kind, batch in traces.items() if kind in chosen}
                for traces in (inputs, recorded, theirs)
            )
        wrote = ""
        if save is not None:
            write_traces(save, inputs, subject.traces(inputs, {}))
            part = " of the encoder" if only_encoder else ""
            wrote = f"wrote inputs and every intermediate{part} of {len(inputs)} batches to {save}"
        if port is not None:
            port.choose(recorded, theirs, only, [kind for kind in ours if kind not in inputs])
        other = port or _best_reference(subject, model, hub)
        if other is not None:
            report.say(*([wrote] if wrote else []))
            compare_with(report, subject, other, inputs, texts, tolerance, form)
        if not encoder and not isinstance(other, Port | shipped.Shipped):
            # a folder may have any name: if the reference can be run, only the reference decides
            values = None if other is not None and is_folder(model) else shipped.find_printed(model, opened)
            if values is not None:
                alone = "torch and transformers are not installed, so the reference was not run; "
                shipped.compare_printed(report, subject, values, "also " if other is not None else alone)
                return report
        if other is None:
            if save is None:
                raise _nothing(model, encoder, subject)
            why = "torch and transformers are not installed, or do not know this model"
            report.say(f"compared with nothing: {why}", wrote)
    return report


def read_against(against: Against) -> Port:
    """Open another program's numbers, in any supported form.

    A file as `save` writes it; a folder of transformers' debugger; an ONNX model; or a dict of arrays, named as in a
    file. Raises ValueError, which names the expected value, and the errors of reading.
    """
    if isinstance(against, Mapping):
        arrays = dict[str, Array]()
        for name, x in against.items():
            where = f"against[{name!r}]"
            try:
                array = np.asarray(x)
            except ValueError as error:  # rows of unequal length
                raise ValueError(f"{where} is no array: {error}") from None
            arrays[str(name)] = checked(array, where)
        return Port("the arrays", as_traces(arrays, "the arrays"))
    path = Path(against)
    if path.is_dir():
        return DebugTree(path)
    return OnnxModel(path) if path.suffix.lower() == ONNX else Port(str(path), read_traces(path))


def _best_reference(subject: Subject, model: str, hub: dict[str, Any]) -> Counterpart | None:
    """Return the reference if it can be run, else its values if they ship."""
    if subject.layer.family is STATIC:
        return None
    if installed():
        return Reference(subject, model, **hub)
    values = shipped.find(subject.model)
    return None if values is None else shipped.Shipped(values)


def _nothing(model: str, encoder: bool, subject: Subject) -> ValueError:
    known = ", ".join(shipped.printed_models())
    unprinted = "" if encoder else f", the package has no printed values of it (only of {known})"
    why: tuple[str | Option, ...] = (
        f"torch and transformers are not installed{unprinted}, and it does not have the weights of {shipped.MODEL}, "
        "whose reference values ship with minibert; install both (the extra `reference`), or name a file with ",
    )
    if subject.layer.family is STATIC:
        other = "transformers has no static models; name a file with another program's vectors with "
        why = other, Option("vectors"), ", or its intermediates with "
    return error_of(ValueError, f"nothing to compare {model} with: ", *why, Option("against"))


# -- comparing and naming: once, for every subject and every counterpart -----------------------------------------


def compare_with(
    report: Comparison, subject: Subject, other: Counterpart, batches: Traces, texts: Sequence[str],
    tolerance: float = 0.0, form: str = "float32",
) -> None:  # fmt: skip
    """Compare with another program, write the differences, and look for the mistake.

    Differences within `tolerance` pass; the search for mistakes does not depend on it.
    """
    report.say(*other.about)
    inputs, ours, theirs = other.traces(report, subject, batches, texts)
    if not inputs:
        return
    in_form = None
    if form != FORMATS[0]:
        from .local import in_format, say_format

        report.say(f"each module is computed again in {form} from the port's own input, for the differences below")
        in_form = in_format(subject, inputs, theirs, form)
        differences = in_form.differences
    else:
        differences = _compared(subject, other, inputs, ours, theirs)
    report.compared = [d.loosened(tolerance) for d in differences]
    known = keys_of(ours)
    if not report.compared:
        found = f"{', '.join(keys_of(theirs)[:4])}; expected names such as"
        names = f"found {found} {', '.join(f'plain|{key}' for key in known[:6])}"
        raise ValueError(f"{other.about[0]}: no intermediate has a name that this {subject.noun} knows; {names}")
    report.say(f"{len(inputs)} batches: {', '.join(inputs)}", "")
    place = _show(report, subject, other, known, form)
    beyond = subject.beyond(inputs)
    report.say(*other.not_compared(known, keys_of(theirs), subject.noun), *([beyond] if beyond else []))
    wrong = [d.key for d in over_kinds(differences) if not d.accepted(other.shares)]
    if not place and in_form is not None:
        say_format(report, subject, form, in_form)
    elif not place:
        report.say(f"no difference beyond {tolerance:g}" if wrong else "no difference beyond what rounding allows")
    if wrong:
        from .local import look

        loose = tolerance if place else 0.0  # else many mistakes would fit numbers that pass by the tolerance
        look(report, subject, inputs, theirs, loose, isinstance(other, Port), form if in_form else "")
    other.close(report, subject)


def _compared(subject: Subject, other: Counterpart, inputs: Traces, ours: Traces, theirs: Traces) -> list[Difference]:
    """Compare two traces; a batch is computed in float64 if some intermediate is beyond its tolerance."""
    differences = subject.compare(inputs, ours, theirs, {})
    if all(d.passes for d in differences):
        return differences

    def exactly(kind: str, named: dict[str, Array]) -> list[Difference]:
        batch = {kind: inputs[kind]}
        return subject.compare(batch, {kind: named}, theirs, other.in_float64(subject, batch, theirs))

    order = [*dict.fromkeys(subject.place(key) for key in keys_of(ours))]

    def follows(_kind: str, key: str, plain: set[str]) -> bool:  # a block's numbers follow from the blocks before
        return any(order.index(subject.place(key)) > order.index(subject.place(earlier)) for earlier in plain)

    return in_float64(differences, ours, exactly, other.shares, follows, lambda d: not d.passes)


def _show(report: Comparison, subject: Subject, other: Counterpart, keys: Sequence[str], form: str) -> str:
    """Write the differences, and return the place of the first one that is too large; "" if there is none.

    keys: the order of computation. A subject with blocks has one line per place, and all intermediates of the place
    that has the first difference.
    """
    whose, shares = other.whose, other.shares
    summed = sorted(over_kinds(report.compared), key=lambda d: keys.index(d.key))
    places: dict[str, list[Difference]] = {}
    for d in summed:
        places.setdefault(subject.place(d.key), []).append(d)
    report.accepted = {d.key: d.accepted(shares) for d in summed}
    wrong = [d for d in summed if not report.accepted[d.key]]
    whole = by_place(places, whose, shares) if subject.has_places else by_intermediate(summed, whose, shares)
    factor = max(d.share for d in report.compared)  # 0 unless a narrower format is named
    allowed = f"{factor:g} times that of our own computation in {form}" if factor else ""
    report.say(*whole, "", subject.words(whose, other.exact or f"this {subject.noun}", allowed), "")
    if not wrong:
        return ""
    place = subject.place(wrong[0].key)
    if subject.has_places:
        kinds = ", ".join(_kinds(report, wrong[0].key, shares))
        report.fail(f"first difference: {place}, {wrong[0].key}, in {kinds}; all of {place}:", "")
        report.say(*by_intermediate(places[place], whose, shares), "")
    else:
        report.fail(*(f"{d.key} differs in {', '.join(_kinds(report, d.key, shares))}" for d in wrong))
    return place


def _kinds(report: Comparison, key: str, shares: Shares) -> list[str]:
    """List the batches in which one intermediate is wrong; all together may be wrong by errors that pass alone."""
    those = [d for d in report.compared if d.key == key and not d.passes]
    return [kind for d in [d for d in those if not d.accepted(shares)] or those for kind in d.kinds]
