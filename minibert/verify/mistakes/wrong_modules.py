"""Mistakes of linear maps, norms, activations, residuals and heads; and weights or numbers in narrower formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from minibert.equations import fast
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import ACTIVATIONS, BoundResidual
from minibert.families.parts.config import replace
from minibert.families.parts.heads import select_tokens
from minibert.families.parts.modules import Embedding, GemmaRMSNorm, LayerNorm, Linear, RMSNorm
from minibert.families.parts.plan import Plan, Step, looked_up, times
from minibert.families.parts.steps import Tokens
from minibert.files.tables import convert, narrowed

from .mistake import UNNORMED, WITH_EPS, At, Mistake, Wrong, by_part, curried, then

Formula = Callable[[Array], Array]
NormFormula = Callable[[Array, float], Array]  # x and eps -> the normed x, before weight and bias

# -- narrower formats --------------------------------------------------------------------------------------------


def to_float16(x: Array) -> Array:
    """Round to float16; numbers that are too large become infinity."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float16).astype(np.float32)


def to_bfloat16(x: Array) -> Array:
    """Round to bfloat16."""
    return convert(narrowed(x.astype(np.float32), "BF16"), "BF16", np.dtype(np.float32))


def to_int8(x: Array) -> Array:
    """Round each row to 255 steps of its largest number."""
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.asarray(np.rint(x / np.where(step == 0, 1, step)) * step, np.float32)


def to_q8_0(x: Array) -> Array:
    """Round each 32 numbers of a row to 255 steps, times a scale in float16: GGUF's Q8_0. The other rows stay.

    >>> to_q8_0(np.array([127.0, 0.6] + [0.0] * 30, np.float32))[:2]
    array([127.,   1.], dtype=float32)
    """
    if x.shape[-1] % 32:
        return x
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / 127
    stepped = np.rint(blocks / np.where(step == 0, 1, step)) * to_float16(step)
    return stepped.reshape(x.shape).astype(x.dtype)


ROUNDINGS: Mapping[str, Formula] = {"float16": to_float16, "bfloat16": to_bfloat16}
FORMATS: Mapping[str, Formula] = {**ROUNDINGS, "q8_0": to_q8_0}  # in which a port may compute


def quantized(at: At) -> Iterator[Step]:
    """Round word rows, and weight and input of each linear map, as GGUF's Q8_0 does."""
    yield from (then(step, to_q8_0) for step in at.steps("rows") if isinstance(step.part.step, Tokens))
    for step in linear(lambda dense: with_weight(dense, to_q8_0))(at):
        yield step._replace(formula=lambda x, right=step.formula: right(to_q8_0(x)))


def rounded(rounding: Formula, at: At) -> Iterator[Step]:
    """Round every parameter: of linear maps, norms, tables, terms of the scores and modules after pooling."""
    if rounding is to_q8_0:
        yield from quantized(at)
        return

    def arrays(values: Mapping[str, Any]) -> dict[str, Array]:
        return {name: rounding(x) for name, x in values.items() if isinstance(x, np.ndarray)}

    def rows(module: Embedding, extra: int, ids: Array | None) -> Array | None:
        x = looked_up(Embedding(module.table), extra, ids)
        return None if x is None else times(module.scale, rounding(x))

    yield from linear(
        lambda dense: Linear(rounding(dense.weight), None if dense.bias is None else rounding(dense.bias),
                            dense.transposed))(at)  # fmt: skip
    for step in at.plan.values():
        part = step.part
        if isinstance(part, LayerNorm):
            yield step._replace(formula=type(part)(**{**vars(part), **arrays(vars(part))}))
        elif step.kind == "rows":
            yield step._replace(formula=partial(rows, part.module, part.step.extra))
        elif step.kind == "term":
            scheme = replace(part.scheme, **arrays(vars(part.scheme)))
            yield step._replace(formula=part._replace(scheme=scheme).plain)
        elif step.kind == "table":
            yield step._replace(formula=partial(rounding, part.scheme.table))
        elif step.kind == "after" and isinstance(part, partial):
            yield step._replace(formula=partial(part, **arrays(part.keywords)))


# -- linear maps -------------------------------------------------------------------------------------------------


def linear(change: Callable[[Linear], Linear], when: Callable[[Linear], Any] = bool) -> Wrong:
    """Replace the linear maps for which `when` is true; a new map is made at its first call."""

    def make(dense: Linear) -> Formula | None:
        changed = cache(lambda: change(dense))
        return (lambda x: changed()(x)) if when(dense) else None

    return by_part("dense", make)


def biased(module: Any) -> bool:
    """Return whether the module has a bias."""
    return module.bias is not None


def read_in_other_shape(dense: Linear) -> Linear:
    """Read the stored buffer of a weight, not square, as if its rows were its columns."""
    weight = np.ascontiguousarray(dense.weight)
    return Linear(weight.reshape(weight.shape[::-1]).T, dense.bias, dense.transposed)


def with_weight(dense: Linear, rounding: Formula) -> Linear:
    """Round the weight by rows, one for each output."""
    weight = rounding(dense.weight.T).T if dense.transposed else rounding(dense.weight)
    return Linear(np.ascontiguousarray(weight), dense.bias, dense.transposed)


# -- norms -------------------------------------------------------------------------------------------------------


def mean(x: Array) -> Array:
    """Compute the mean of each row: (..., dim) -> (..., 1)."""
    return np.asarray(x.mean(axis=-1, keepdims=True))


def normed(x: Array, eps: float, less: int = 0, rms: bool = False, outside: bool = False) -> Array:
    """(x - mean) / sqrt(sum of squares / (dim - less) + eps); rms: x / sqrt(E[x^2] + eps); outside: sqrt(...) + eps."""
    square = mean(x * x) if rms else x.var(axis=-1, keepdims=True, ddof=less)
    return np.asarray((x if rms else x - mean(x)) / (np.sqrt(square) + eps if outside else np.sqrt(square + eps)))


def one_pass(x: Array, eps: float) -> Array:
    """variance = E[x^2] - E[x]^2, in x's dtype."""
    return np.asarray((x - mean(x)) / np.sqrt(np.maximum(mean(x * x) - mean(x) ** 2, 0) + eps))


def norm(formula: NormFormula, rms: bool = False, eps: float | None = None) -> Wrong:
    """Compute each LayerNorm, or with `rms` each RMSNorm, by another formula, and another eps if one is passed."""

    def make(module: Any) -> Formula | None:
        if isinstance(module, RMSNorm) != rms or module.eps == eps:
            return None
        weight = module.weight + module.weight.dtype.type(getattr(module, "plus", 0))
        bias, added = (0 if module.bias is None else module.bias), module.eps if eps is None else eps
        return lambda x: np.asarray(formula(x, added) * weight + bias)

    return by_part("norm", make)


def other_norm(change: Callable[[Any], tuple[Array, Array | None, float]], when: Callable[[Any], Any]) -> Wrong:
    """Replace the weight, the bias or the eps of each norm for which `when` is true."""
    return by_part("norm", lambda module: type(module)(*change(module)) if when(module) else None)


def other_eps(eps: float) -> Wrong:
    """Replace the eps of each norm, unless it is the same."""
    return other_norm(lambda module: (module.weight, module.bias, eps), lambda module: module.eps != eps)


def without_last_norm(at: At) -> Iterator[Step]:
    """Return the input of the last norm as the last hidden state."""
    for step in at.plan.values() if at.block else ():
        if step.of == (at.stack.last_norm,):
            yield step._replace(of=at.plan[step.of[0]].of)


# -- pieces of the blocks, feed-forward, and residuals with the norms around them --------------------------------


def piece_of_next_block(at: At) -> Iterator[Step]:
    """Take the piece of the next block, in the last block that of the first."""
    for step in at.steps("piece"):
        following = ((at.i or 0) + 1) % len(at.stack.blocks)
        yield step._replace(formula=lambda x, number=following: x[..., number, :])


def other_activation(word: str) -> Wrong:
    """Use another activation; the textbook form and the fast form of one count as the same."""
    formula = ACTIVATIONS[word]
    return by_part("activation", lambda module: None if module in (formula, fast.faster(formula)) else formula)


def gate_for_up(at: At) -> Iterator[Step]:
    """Apply the activation to `up`, and multiply by the gate."""
    for step in at.steps("product"):
        activation, up = (at.plan[name] for name in step.of)
        yield activation._replace(of=(up.key,))
        yield step._replace(of=(activation.key, *activation.of))


def replanned(at: At, plan: Plan) -> Iterable[Step]:
    """Return the steps of another plan whose inputs differ from this place's."""
    return (step for key, step in plan.items() if at.plan[key].of != step.of)


@curried
def residuals(at: At, change: Callable[[BoundResidual], BoundResidual]) -> Iterable[Step]:
    """Plan the block with changed residual connections."""
    if not at.block:
        return ()
    other = at.block._replace(parts=tuple(map(change, at.block.parts)))
    return replanned(at, other.plan(at.i or 0, at.stack))


def residual_before_norm(at: At) -> Iterator[Step]:
    """Add the output of attention or feed-forward to the input of the norm before, not to its output."""
    for step in at.steps("sum"):
        if step.of[0] in at.plan and at.plan[step.of[0]].kind == "norm":
            yield step._replace(of=(at.plan[step.of[0]].of[0], step.of[1]))


def residual_normed(at: At) -> Iterator[Step]:
    """Add the output of attention or feed-forward to the normed input."""
    for step in at.steps("sum"):
        if step.part.pre_norm:
            yield step._replace(of=(step.part.pre_norm, step.of[1]))


def side_by_side(at: At) -> Iterator[Step]:
    """Compute the feed-forward from the block's input, as attention is computed."""
    if at.block and len(at.block.parts) > 1:
        late = at.block.parts[0].post_norm or at.block.parts[0].sum
        for step in at.plan.values():
            if late in step.of and step.kind != "sum":
                yield step._replace(of=tuple(f"hidden_states.{at.i}" if name == late else name for name in step.of))


def without_last_block(at: At) -> Iterator[Step]:
    """Return the input of the last block as its output."""
    depth = len(at.stack.blocks) if at.block else 0
    for step in at.steps("state") if depth > 1 and at.i == depth - 1 else ():
        last_norm = at.plan.get(at.stack.last_norm)
        yield (last_norm or step)._replace(of=(f"hidden_states.{at.i}",))


# -- heads of a model --------------------------------------------------------------------------------------------


def other_pooling(right: tuple[str, ...], wrong: str) -> Wrong:
    """Classify by another token, or by the mean of all tokens, in heads that use a `right` one."""
    return by_part("take", lambda head: partial(select_tokens, wrong, head.pad_id) if head.pooling in right else None)


def without_pooler(at: At) -> Iterator[Step]:
    """Leave out a head's first map and its activation, if the last map is as wide as the first."""
    for take in at.steps("take"):
        head = take.part
        first = next((work for _, work in head.works if isinstance(work, Linear)), head.last)
        if head.pooling != "every" and head.last.shape[1] == first.shape[1]:
            yield from replanned(at, head._replace(works=()).plan(take.of[0]))


def without_norm_before_head(at: At) -> Iterator[Step]:
    """Let the head take the input of the last norm."""
    for take in at.steps("take"):
        if at.stack.last_norm:
            yield take._replace(of=(UNNORMED, *take.of[1:]))


def by_the_word_table(at: At) -> Iterator[Step]:
    """Use the word table in a head that has another table."""
    for take in at.steps("take"):
        table, last = at.layer.steps[0].module.table.array(), take.part.last
        if table.shape == last.weight.shape and not np.array_equal(table, last.weight):
            yield at.plan[take.part.path]._replace(formula=Linear(table, last.bias))


# -- the lists ---------------------------------------------------------------------------------------------------

BIAS = "A linear map adds its bias once, a norm after the weight."
ROUNDED = "The weights are narrower than the model's."
EPS = "config.json names it: BERT has 1e-12, RoBERTa and torch 1e-5, Llama and similar models 1e-6."
OUTSIDE = {0: "eps outside the root", 1: "variance divided by dim - 1, eps outside the root"}  # by `less`
EPS_KEYS = ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon", "norm_eps")
ACTIVATION = "config.json names the activation, or the head fixes it."
ACT_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation", "dense_act_fn")
WITHIN = "The outputs of attention and feed-forward are normed before they are added."
TAKES = "A head that takes one token of a text takes the first in BERT and similar models, the last in GPT-2."

# fmt: off
MODULES: tuple[Mistake, ...] = (
    # linear maps
    Mistake("bias missing", BIAS, linear(lambda dense: Linear(dense.weight, None, dense.transposed), biased)),
    Mistake("weight transposed", "GPT-2 stores (in, out), others (out, in); square ones fit both ways.",
            linear(lambda dense: Linear(dense.weight, dense.bias, not dense.transposed),
                   lambda dense: dense.shape[0] == dense.shape[1])),
    Mistake("weight's buffer read with the other shape", "The file names rows first; GGUF names columns first.",
            linear(read_in_other_shape, lambda dense: dense.shape[0] != dense.shape[1])),
    *(Mistake(f"parameters in {name}", ROUNDED, partial(rounded, rounding), on_vectors=True, rounding=name)
      for name, rounding in ROUNDINGS.items()),
    Mistake("weights in int8", ROUNDED, linear(lambda dense: with_weight(dense, to_int8)), on_vectors=True,
            rounding="int8"),
    # norms
    *(Mistake(f"eps {eps:g}", EPS, other_eps(eps), on_vectors=True, keys=EPS_KEYS)
      for eps in (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)),  # BERT, tutorials, Llama, torch, Keras
    Mistake("variance divided by dim - 1", "LayerNorm divides by dim; only a sample's estimate divides by dim - 1.",
            norm(partial(normed, less=1)), on_vectors=True),
    Mistake("eps outside the root", "eps is added to the variance, not to its root.",
            norm(partial(normed, outside=True)), on_vectors=True),
    Mistake("variance divided by dim - 1, eps outside the root", "`std(-1) + eps` of torch gives this, as many "
            "tutorials print it.", norm(partial(normed, less=1, outside=True)), on_vectors=True),
    *(Mistake(f"{OUTSIDE[less]}{WITH_EPS}{eps:g}", "Tutorials print `(x - mean) / (std + eps)` with this eps; the "
              "model's is added to the variance.", norm(partial(normed, less=less, outside=True), eps=eps),
              on_vectors=True, keys=EPS_KEYS) for less in OUTSIDE for eps in (1e-5, 1e-6, 1e-8)),
    Mistake("variance in one pass", "E[x^2] - E[x]^2 cancels if the mean is large.", norm(one_pass), on_vectors=True),
    Mistake("RMSNorm for LayerNorm", "T5 and Llama do not subtract the mean; this norm does.",
            norm(partial(normed, rms=True)), on_vectors=True),
    Mistake("eps outside the root", "eps is added to the mean square, not to its root.",
            norm(partial(normed, rms=True, outside=True), True)),
    Mistake("mean subtracted in RMSNorm", "RMSNorm divides by the root of the mean square; the mean stays.",
            norm(normed, True)),
    Mistake("RMSNorm by the sum of squares", "It divides by the root of the mean square; normalize() takes the sum.",
            norm(lambda x, eps: x / np.sqrt((x * x).sum(-1, keepdims=True) + eps), True), on_vectors=True),
    Mistake("weight without 1 +", "Gemma's RMSNorm multiplies by 1 + weight.",
            by_part("norm", lambda module: RMSNorm(module.weight, None, module.eps)
                    if getattr(module, "plus", 0) else None), on_vectors=True),
    Mistake("weight with 1 +", "Gemma 1 to 3 multiply by 1 + weight; this RMSNorm multiplies by the weight itself.",
            by_part("norm", lambda module: GemmaRMSNorm(module.weight, None, module.eps)
                    if type(module) is RMSNorm and (module.weight != 1).any() else None), on_vectors=True),
    Mistake("weight and bias ignored", "Old files call them gamma and beta, and readers miss them.",
            other_norm(lambda module: (np.ones_like(module.weight), None, module.eps), biased), on_vectors=True),
    Mistake("gamma and beta exchanged", "gamma is the weight, which multiplies; beta is the bias, which is added.",
            other_norm(lambda module: (module.bias, module.weight, module.eps), biased), on_vectors=True),
    Mistake("bias missing", BIAS, other_norm(lambda module: (module.weight, None, module.eps), biased)),
    Mistake("norm not applied", "You left out LayerNorm, or RMSNorm.", by_part("norm", lambda module: np.asarray)),
    # activations; a rarer activation would only be a guess
    *(Mistake(f"activation {word}", ACTIVATION, other_activation(word), on_vectors=True, keys=ACT_KEYS)
      for word in ("quick_gelu", "silu", "relu", "relu6", "gelu_new", "gelu")),
    Mistake("activation left out", "An activation stands between the two maps.",
            by_part("activation", lambda module: np.asarray), on_vectors=True),
)

RESIDUALS_AND_HEADS: tuple[Mistake, ...] = (
    Mistake("gate and up exchanged", "The activation is applied to the gate; its result is multiplied by `up`.",
            gate_for_up, on_vectors=True),
    Mistake("norm before instead of after", "BERT normalizes each sum, GPT-2 the inputs of attention and feed-forward.",
            residuals(lambda part: part._replace(pre_norm=part.post_norm, post_norm="") if part.post_norm else part),
            on_vectors=True),
    Mistake("norm after instead of before", "GPT-2 normalizes the inputs of attention and feed-forward, BERT each sum.",
            residuals(lambda part: part._replace(pre_norm="", post_norm=part.pre_norm) if part.pre_norm else part),
            on_vectors=True),
    Mistake("norm before the sum not applied", WITHIN, residuals(lambda part: part._replace(output_norm=""))),
    Mistake("last norm not applied", "After the last block comes one more norm, which GPT-2 calls ln_f.",
            without_last_norm, on_vectors=True),
    Mistake("residual from the normed x", "In GPT-2 each part adds to x as it was before the part's norm.",
            residual_normed, on_vectors=True),
    Mistake("residual from before the norm", "In BERT the second sum begins with the first norm's output.",
            residual_before_norm, on_vectors=True),
    Mistake("feed-forward beside attention", "The feed-forward takes attention's sum, not the block's input.",
            side_by_side, "whole", True),
    Mistake("residual missing", "Each part adds its output to its input, once.",
            by_part("sum", lambda part: lambda x, added: added), on_vectors=True),
    Mistake("factor of the block left out", "A block's output is multiplied by layer_scalar, a number in the file.",
            by_part("factor", lambda part: np.asarray), on_vectors=True),
    Mistake("piece of the next block", "Block i receives piece i of the projection of the input rows.",
            piece_of_next_block, on_vectors=True),
    Mistake("projection's factor left out", "The projection of the input rows is divided by sqrt(dim) before its norm.",
            by_part("pieces", lambda part: np.asarray), on_vectors=True),
    Mistake("last block missing", "Every block of the file is run.", without_last_block, on_vectors=True),
    # a model's head
    Mistake("word table where the head has its own", "The head has its own table in this file; only a tied head uses "
            "the word table.", by_the_word_table),
    Mistake("pooler forgotten", "The classes are not computed from the hidden state itself: a map and an activation "
            "come before.", without_pooler),
    Mistake("last norm not applied before the head", "A head takes the last hidden state, which is normed.",
            without_norm_before_head),
    Mistake("first token instead of the last", TAKES, other_pooling(("last",), "first")),
    Mistake("first token instead of the mean", "This model's config says that its head takes the mean of all tokens.",
            other_pooling(("mean",), "first")),
    Mistake("mean of the tokens instead of one", TAKES, other_pooling(("first", "last"), "mean")),
)
# fmt: on
