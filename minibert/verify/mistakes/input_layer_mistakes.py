"""The classic mistakes of an input layer, each as a row of the families table that makes it.

A mistake is a name, one sentence, and a function that takes a right row and gives the wrong one, or None where the row
cannot have this mistake. `verify` tries them on the numbers of a port that differs; `load(..., family=wrong)` makes
the layer. Nothing else uses them. First the steps that compute wrongly, then the rows that use them, last the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array, default_position_ids, mask_position_ids, scale, sinusoidal_positions
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.frozen import replace
from minibert.families.parts.modules import Embedding, LayerNorm
from minibert.families.parts.steps import Add, Ids, Inputs, Mask, Norm, Positions, Project, Record, Scale, Step, Tokens

Steps = tuple[Step, ...]
Formula = Callable[[Array, float], Array]
S = TypeVar("S", bound=Step)


class Mistake(NamedTuple):
    """A name, why it is a mistake, and right row -> wrong row; None where a row cannot have it."""

    name: str
    why: str
    make: Callable[[Family], Family | None]


# -- steps that compute wrongly ----------------------------------------------------------------------------------------


class OtherNorm(Norm):
    """A norm by another formula: x and eps -> what weight and bias are then applied to."""

    formula: Formula
    affine: bool = True

    def apply(self, module: LayerNorm, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if record:
            record("sum", x)
        x = self.formula(x, module.eps)
        if self.affine:
            x = x * module.weight + (0 if module.bias is None else module.bias)
        if record:
            record(self.path, x)
        return x


def right(x: Array, eps: float, less: int = 0) -> Array:
    """(x - mean) / sqrt(sum of squares / (dim - less) + eps)."""
    return np.asarray((x - mean(x)) / np.sqrt(x.var(axis=-1, keepdims=True, ddof=less) + eps))


def eps_outside(x: Array, eps: float, less: int = 0) -> Array:
    """(x - mean) / (sqrt(sum of squares / (dim - less)) + eps)."""
    return np.asarray((x - mean(x)) / (x.std(axis=-1, keepdims=True, ddof=less) + eps))


unbiased, unbiased_eps_outside = partial(right, less=1), partial(eps_outside, less=1)


def one_pass(x: Array, eps: float) -> Array:
    """variance = E[x^2] - E[x]^2, in x's own dtype."""
    return np.asarray((x - mean(x)) / np.sqrt(np.maximum(mean(x * x) - mean(x) ** 2, 0) + eps))


def root_mean_square(x: Array, eps: float) -> Array:
    """x / sqrt(E[x^2] + eps): the mean is not subtracted."""
    return np.asarray(x / np.sqrt(mean(x * x) + eps))


def mean(x: Array) -> Array:
    """Of each row: (..., dim) -> (..., 1)."""
    return np.asarray(x.mean(axis=-1, keepdims=True))


class OtherTokens(Tokens):
    """Word rows, or the caller's inputs_embeds, changed before anyone sees them."""

    change: Callable[[Embedding, Inputs, Array], None]

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        self.change(module, inputs, super().apply(module, inputs, x))
        if record and inputs.inputs_embeds is None:
            record(self.path, x)
        return x


def rounded_late(module: Embedding, inputs: Inputs, x: Array) -> None:
    """Word rows times a float64 factor."""
    if inputs.inputs_embeds is None and module.scale != 1.0:
        x[...] = module.table.rows(_array(inputs.ids["input_ids"])).astype(np.float64) * module.scale


def embeds_scaled_too(module: Embedding, inputs: Inputs, x: Array) -> None:
    """The scale of the word module applied to the caller's inputs_embeds too."""
    if inputs.inputs_embeds is not None:
        scale(x, module.scale, out=x)


def zero_padding(module: Embedding, inputs: Inputs, x: Array) -> None:
    """The row of padding read as zeros."""
    if inputs.inputs_embeds is None and module.padding_idx is not None:
        x[_array(inputs.ids["input_ids"]) == module.padding_idx] = 0


class ScaleRoundedLate(Scale):
    """x times a float64 factor."""

    def apply(self, module: float, inputs: Inputs, x: Array, record: Record = None) -> Array:
        wide = x.astype(np.float64) * module
        x = super().apply(module, inputs, x)
        if self.embeds or inputs.inputs_embeds is None:
            x[...] = wide
            if record:
                record(self.path, x)
        return x


class NoOffset(Positions):
    """Positions looked up without the rows that the table has in front."""

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        return Positions.apply(replace(self, extra=0), module, inputs, x, record)


class PaddingCounted(Positions):
    """RoBERTa's first position, but padding counted like any token."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        start = self.first(config) + (past_length if self.cached else 0)
        return slice(start, start + given.seq)


class CountedByIds(Positions):
    """OPT's rule with a mask made from the ids."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        if given.inputs_embeds is not None:
            return super().default(given, config, past_length)
        real = _array(given.ids["input_ids"]) != config.integer("pad_token_id")
        before = np.ones((given.batch, past_length), bool)
        return mask_position_ids(np.concatenate([before, real], axis=1), past_length)


class CountedByMask(Positions):
    """RoBERTa's rule with the attention mask in the place of the ids."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        if given.attention_mask is None:
            return Positions.default(replace(self, rule="padding"), given, config, past_length)
        return mask_position_ids(given.attention_mask, past_length) + self.padding(config) + 1


class CountedAsGenerate(Positions):
    """Positions that `generate()` passes: cumsum(mask) - 1, and 0 where masked."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        positions = super().default(given, config, past_length)
        return np.maximum(positions, 0) if isinstance(positions, np.ndarray) else positions


class AddedSinusoids(Positions):
    """Sinusoids where the model adds none."""

    longest: int = 4096

    def shape(self, config: Config) -> tuple[int, int]:
        return self.longest, config.integer(self.width)


class UnappliedMask(Mask):
    """Rows of padding left as they are."""

    def apply(self, module: None, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if record:
            record(self.path, x)
        return x


def sinusoids_in_float32(rows: int, dim: int) -> Array:
    """Marian's table with angles computed in float32."""
    exponent = np.float32(2) * (np.arange(dim) // 2).astype(np.float32) / np.float32(dim)
    angle = default_position_ids(rows)[0][:, None].astype(np.float32) / np.float32(10000) ** exponent
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)


def _array(ids: Ids) -> Array:
    assert isinstance(ids, np.ndarray)  # input_ids always are
    return ids


# -- rows with one step changed ----------------------------------------------------------------------------------


def _as(kind: type[S], step: Step, **more: Any) -> S:
    """The same step as another class, with the fields it adds."""
    return kind(**vars(step), **more)


def _each(change: Callable[[Steps], Steps], *unused: str) -> Callable[[Family], Family | None]:
    """Change the steps of both sides; tensors with these endings are then left over, and no fault of the file's."""

    def make(family: Family) -> Family | None:
        steps, decoder = change(family.steps), change(family.decoder)
        if (steps, decoder) == (family.steps, family.decoder):
            return None
        # an argument that no step takes any more must not be an error of the caller
        later = (*family.later_arguments, "token_type_ids", "position_ids")
        endings = (*family.unused_endings, *unused)
        return replace(family, steps=steps, decoder=decoder, unused_endings=endings, later_arguments=later)

    return make


def _swap(kind: type[Step], change: Callable[[Any], Step | None], *unused: str) -> Callable[[Family], Family | None]:
    """Change every step of one kind; None leaves it out."""

    def all_steps(steps: Steps) -> Iterator[Step]:
        for step in steps:
            changed = change(step) if isinstance(step, kind) else step
            if changed is not None:
                same = type(changed) is type(step) and vars(changed) == vars(step)
                yield step if same else changed

    return _each(lambda steps: tuple(all_steps(steps)), *unused)


def _norm(formula: Formula, affine: bool = True) -> Callable[[Family], Family | None]:
    return _swap(Norm, lambda step: _as(OtherNorm, step, formula=formula, affine=affine))


def _other_order(steps: Steps) -> Steps:
    """Rows are added in the opposite order; the word rows stay first."""
    added = [step for step in steps if isinstance(step, Add | Positions)]
    return tuple(added.pop() if isinstance(step, Add | Positions) else step for step in steps)


def _shared_first(step: Tokens) -> Step:
    return replace(step, names=tuple(sorted(step.names, key=lambda name: name != "shared.weight")))


def _no_file(step: Positions, table: Callable[[int, int], Array]) -> Step:
    return step if step.generate is None else replace(step, names=("computed",), generate=table)


def _with_sinusoids(steps: Steps) -> Steps:
    if not steps or any(isinstance(step, Positions) for step in steps):
        return steps
    place = 1 + max(i for i, step in enumerate(steps) if isinstance(step, Tokens | Add))
    return (*steps[:place], AddedSinusoids(path="sinusoids", generate=sinusoidal_positions), *steps[place:])


def _when(rule: str, change: Callable[[Positions], Step]) -> Callable[[Positions], Step]:
    return lambda step: change(step) if step.rule == rule else step


# fmt: off
MISTAKES: tuple[Mistake, ...] = (
    Mistake("variance divided by dim - 1", "LayerNorm divides by dim; only a sample's estimate divides by dim - 1.",
            _norm(unbiased)),
    Mistake("eps outside the root", "eps is added to the variance, not to its root.", _norm(eps_outside)),
    Mistake("variance divided by dim - 1, eps outside the root",
            "What `std(-1) + eps` gives in torch, and many tutorials print.", _norm(unbiased_eps_outside)),
    Mistake("variance in one pass", "E[x^2] - E[x]^2 cancels where the mean is large.", _norm(one_pass)),
    Mistake("eps 1e-5", "1e-5 is torch's default; BERT has 1e-12.",
            _swap(Norm, lambda step: replace(step, eps=1e-5))),
    Mistake("eps 1e-12", "1e-12 is BERT's; RoBERTa, BART and others have 1e-5.",
            _swap(Norm, lambda step: replace(step, eps=1e-12))),
    Mistake("weight and bias of the norm ignored", "Old files call them gamma and beta, and readers miss them.",
            _norm(right, affine=False)),
    Mistake("RMSNorm for LayerNorm", "T5 and Llama do not subtract the mean in their blocks; this norm does.",
            _norm(root_mean_square)),
    Mistake("rows added in the other order", "Float addition is not associative; a third of all entries differ.",
            _each(_other_order)),
    Mistake("type rows left out", "Without types the reference still adds row 0.",
            _swap(Add, lambda step: None if step.ids == "token_type_ids" else step, "token_type_embeddings.weight")),
    Mistake("type row 0 added", "GPT-2 and XLM add a row for types only where types are passed.",
            _swap(Add, lambda s: replace(s, missing=0) if s.ids == "token_type_ids" and s.missing is None else s)),
    Mistake("position rows left out", "Each token's position adds a row of its own.",
            _swap(Positions, lambda step: None, "position_embeddings.weight", "position_embedding.weight")),
    Mistake("positions counted from 0", "RoBERTa's first position is after the padding row: padding_idx + 1.",
            _swap(Positions, _when("padding", lambda step: replace(step, rule="count")))),
    Mistake("padding counted as tokens", "RoBERTa's positions skip padding.",
            _swap(Positions, _when("padding", lambda step: _as(PaddingCounted, step)))),
    Mistake("mask instead of the ids", "RoBERTa counts ids that are not padding, whatever the attention mask says.",
            _swap(Positions, _when("padding", lambda step: replace(_as(CountedByMask, step), rule="mask")))),
    Mistake("padding id from the config", "MPNet's positions skip id 1 whatever config.json says.",
            _swap(Positions, lambda s: replace(s, padding_idx="pad_token_id") if s.padding_idx == 1 else s)),
    Mistake("ids instead of the mask", "OPT counts what the attention mask keeps; padding without a mask counts.",
            _swap(Positions, _when("mask", lambda step: _as(CountedByIds, step)))),
    Mistake("mask ignored in positions", "OPT counts what the attention mask keeps.",
            _swap(Positions, _when("mask", lambda step: replace(step, rule="count")))),
    Mistake("positions counted by the mask", "Only `generate()` does so, and passes them; a plain call counts padding.",
            _swap(Positions, _when("count", lambda step: replace(_as(CountedAsGenerate, step), rule="mask")))),
    Mistake("offset of the position table missing", "BART's and OPT's tables have two rows in front of position 0.",
            _swap(Positions, lambda step: _as(NoOffset, step) if step.extra else step)),
    Mistake("cached tokens not counted", "With a cache the first new token comes after the cached ones.",
            _swap(Positions, lambda step: step if step.rule == "mask" else replace(step, cached=False))),
    Mistake("sinusoids in the other layout", "Marian has all sines first, Vaswani's paper alternates.",
            _swap(Positions, lambda step: _no_file(step, sinusoidal_positions), "embed_positions.weight")),
    Mistake("sinusoids from float32 angles", "At position 4095 a float32 angle is 1e-4 off.",
            _swap(Positions, lambda step: _no_file(step, sinusoids_in_float32), "embed_positions.weight")),
    Mistake("sinusoids added", "T5, Llama and similar models add no position row; positions act in attention.",
            _each(_with_sinusoids)),
    Mistake("scale in float64", "sqrt(dim) is rounded to float32 before it multiplies.",
            lambda row: _swap(Tokens, lambda s: _as(OtherTokens, s, change=rounded_late) if s.scale else s)(row)
            or _swap(Scale, lambda step: _as(ScaleRoundedLate, step))(row)),
    Mistake("scale left out", "Word rows are multiplied by sqrt(dim) before positions are added.",
            lambda row: _swap(Tokens, lambda step: replace(step, scale=None))(row)
            or _swap(Scale, lambda step: None)(row)),
    Mistake("inputs_embeds scaled", "BART scales inside its word module, so the caller's own embeddings stay.",
            _swap(Tokens, lambda step: _as(OtherTokens, step, change=embeds_scaled_too) if step.scale else step)),
    Mistake("padding row zeroed", "padding_idx starts a row at zero before training; trained files hold numbers there.",
            _swap(Tokens, lambda step: _as(OtherTokens, step, change=zero_padding))),
    Mistake("shared table first", "In untied BART each side has a table of its own, and `shared` is not used.",
            _swap(Tokens, lambda s: _shared_first(s) if "shared.weight" in s.names else s, "embed_tokens.weight")),
    Mistake("bias of the projection left out", "ALBERT's and ELECTRA's projections have one.",
            _swap(Project, lambda step: replace(step, biased=False), "_in.bias", "_project.bias")),
    Mistake("mask not applied", "DeBERTa and XLM multiply the rows by the attention mask after the norm.",
            _swap(Mask, lambda step: _as(UnappliedMask, step))),
)
# fmt: on
