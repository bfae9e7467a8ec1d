"""A text's way through one block, as a page of plain text: what `minibert explain TEXT --block 3` prints.

Scores and attention weights are those of one head, with the tokens beside the rows: no model computes a mean over
heads. Everything else is of all heads together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minibert.equations import blocks as equations
from minibert.equations import gated_blocks
from minibert.equations.attention_positions import rotate
from minibert.equations.blocks import Affine, additive_mask
from minibert.equations.input_layer import Array, layer_norm
from minibert.families.bound_blocks import Attention, BoundBlock, RMSNorm
from minibert.models.blocks import Stack
from minibert.models.encoder import Encoder

from .explain import Told, differs, first_of_text, heading
from .text import EDGE, Style, all_rows, beginning, columns_of, fitting, padded, styles, wrap

COLUMN = 7  # columns of one number of a table: a sign, and four decimals
CUT = " ..."
MOST_NAMED = 40  # tokens of a text in a message


def explain_block(
    encoder: Encoder,
    text: str,
    block: int,
    head: int = 0,
    text_pair: str | None = None,
    colour: bool = False,
    full: bool = False,
    truncation: bool = False,
    token: str | None = None,
) -> Iterator[str]:
    """Give the page line by line: of each step of block `block` (from 0) name, shape, function, formula and numbers.

    The numbers are the first six of one token: of `token`, its number from 0 or the token itself, else of the text's
    first. `full` gives all rows as torch prints them, and the block computed once more by one function. For head `head`
    (from 0) the weights of all tokens are always shown.
    Raises ValueError for a block, head or token that is not there, and as a call of the encoder.
    """
    stack = encoder.stack
    _check("block", block, len(stack.blocks))
    _check("head", head, stack.heads)
    batch: dict[str, Any] = encoder.tokenize(text, text_pair, truncation=truncation and encoder.max_length is not None)
    tokens = [fitting(token) for token in encoder.embeddings.tokenizer.tokens(batch["input_ids"][0])]
    if not tokens:
        raise ValueError("this text has no tokens, so no block can be computed; give another one")
    place = _place(token, tokens, first_of_text(encoder.embeddings, batch["input_ids"][0]) or 0)
    trace = encoder.trace(**batch)
    bold, dim = styles(colour)
    shape, own = trace["hidden_states.0"].shape, stack.blocks[block].attention
    yield bold(f"block {block} of {len(stack.blocks)} of {encoder.embeddings.family.model_type} -> {shape}")
    yield from wrap(f"head {head} of {stack.heads} in scores and weights, {own.head_dim} numbers wide", 2)
    for name, key, step in steps(encoder, trace, block, head):
        x = trace[key]
        yield from heading(name, step, x, bold, dim)
        pairs = key.startswith("attentions.") or key == own.scores
        if pairs and (full or key != own.scores):
            yield from pair_table(tokens, x[0, head], bold)
        elif full:
            yield from all_rows(x)
        else:
            yield f"  {tokens[place]}  {beginning(x[0, head, place] if pairs else x[0, place].ravel())}"
    if full and (closing := by_hand(encoder, trace, block)) is not None:
        yield ""
        yield bold("by hand, with the weights of this block")
        yield from (f"  {line}" for line in closing)


def _check(what: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        there = f"0..{count - 1}" if count else "none"
        raise ValueError(f"{what} {number} is not there: this model has {what}s {there}; choose one of them")


def _place(wanted: str | None, tokens: Sequence[str], usual: int) -> int:
    if wanted is None:
        return usual
    if wanted in tokens:
        return tokens.index(wanted)
    if wanted.isdecimal() and wanted.isascii() and len(wanted) < 10 and int(wanted) < len(tokens):
        return int(wanted)
    shown = ", ".join(f"{place} {token}" for place, token in enumerate(tokens[:MOST_NAMED]))
    more = f", ... {len(tokens) - 1} {tokens[-1]}" if len(tokens) > MOST_NAMED else ""
    raise ValueError(f"token {wanted!r:.40} is not in this text, whose tokens are {shown}{more}; choose one of them")


def steps(encoder: Encoder, trace: dict[str, Array], i: int, head: int) -> Iterator[tuple[str, str, Told]]:
    """Give each intermediate of block i in the order of computing: name, key of the trace, formula and function."""
    keys, last = list(trace), f"hidden_states.{i + 1}"
    own = keys[keys.index(f"hidden_states.{i}") : keys.index(last) + 1]
    told = _steps(encoder, i, head)
    prefix = encoder.block_family.prefix(encoder.config, i)
    for key, after in zip(own, [*own[1:], ""], strict=True):
        if key == last:  # the rows that were just shown
            return
        name = f"probabilities, attentions.{i}" if key.startswith("attentions.") else key.removeprefix(prefix)
        yield f"{name} = {last}" if after == last else name, key, told[key]


def _steps(encoder: Encoder, i: int, head: int) -> dict[str, Told]:
    stack, block = encoder.stack, encoder.stack.blocks[i]
    modules, x = block.modules | stack.others, f"hidden_states.{i}"
    told = {x: Told("what enters: the output of " + (f"block {i - 1}" if i else "the input layer"))}
    prefix = encoder.block_family.prefix(encoder.config, i)
    short: Callable[[str], str] = lambda path: path.removeprefix(prefix)  # noqa: E731

    def normed(path: str, x: str) -> str:
        if not path:
            return x
        norm, of = modules[path], f"x = {short(x)}, each row by itself"
        if isinstance(norm, RMSNorm):
            weight = f"({norm.plus:g} + weight)" if norm.plus else "weight"
            told[path] = Told(f"x / sqrt(mean(x^2) + {norm.eps}) * {weight}, {of}", equations.rms_norm)
        else:
            bias = " + bias" if norm.bias is not None else ""
            told[path] = Told(f"(x - mean) / sqrt(variance + {norm.eps}) * weight{bias}, {of}", layer_norm)
        return path

    def mapped(path: str, x: str) -> str:
        stored = "weight" if modules[path].transposed else "weight^T"
        bias = " + bias" if modules[path].bias is not None else ""
        told[path] = Told(f"{modules[path]!r}: {short(x)} @ {stored}{bias}", equations.linear)
        return path

    for part in block.parts:
        work, y = part.work, normed(part.before, x)
        if isinstance(work, Attention):
            for path in work.maps:
                mapped(path, y)
            for path, of in zip(work.norms, work.maps, strict=False):
                normed(path, f"each head of {short(of)}")
            told |= _attention(encoder, work, head)
            y = mapped(work.output, work.context)
        else:
            gate = short(mapped(work.gate or work.up, y))
            if work.gate:
                other = short(mapped(work.up, y)) if work.up != work.gate else f"the second half of {gate}"
                gate = gate if work.up != work.gate else f"the first half of {gate}"
            _, _, docstring = (work.activate.__doc__ or "").partition("`")  # the equation's own has its formula
            formula = f"{docstring.partition('`')[0]}, x = {gate}, each number by itself"
            told[work.activation] = Told(formula, work.activate)
            y = mapped(work.output, f"({short(work.activation)} * {other})" if work.gate else work.activation)
        told[part.sum] = Told(f"{short(x)} + {short(normed(part.within, y))}")
        x = normed(part.after, part.sum)
    normed(stack.last_norm, x)
    return told


def _attention(encoder: Encoder, own: Attention, head: int) -> dict[str, Told]:
    width, stack = own.head_dim, encoder.stack
    q, k, v = ("q", "k", "v") if len(own.maps) == 1 else (path.rpartition(".")[2] for path in own.maps)
    q, k = (path.rpartition(".")[2] or name for path, name in zip(own.norms, (q, k), strict=True))
    of_root = f", 1 / sqrt({width}) = {own.scale:.6g}" if math.isclose(own.scale, 1 / math.sqrt(width)) else ""
    bias = "".join(f" + {term.says}" for term in own.terms)
    parts = "" if len(own.maps) == 3 else " (q, k and v side by side)"
    columns = f"columns {head * width} to {(head + 1) * width - 1} of each are head {head}{parts}"
    if own.key_heads != own.heads:
        shared = head // (own.heads // own.key_heads)
        columns = f"head {head} uses key head {shared} of {own.key_heads}"
    turned = ", both turned by their token's place" if own.rotated else ""
    if own.layer_type:
        turned += f" as {own.layer_type} says"
    mask = ", later tokens masked" if stack.causal else ""
    if own.reach is not None:
        mask += f", tokens further than {own.reach} away masked"
    return {
        own.scores: Told(
            f"{own.scale:.6g} * {q} @ {k}^T{bias}{of_root}{turned}; {columns}", equations.attention_scores
        ),
        own.probabilities: Told(
            f"softmax(scores){mask}: the attention weights of each row's token; their sum is 1", equations.softmax
        ),
        own.context: Told(
            f"probabilities @ {v} in each head, all {stack.heads} heads side by side", equations.join_heads
        ),
    }


def pair_table(tokens: Sequence[str], x: Array, bold: Style) -> Iterator[str]:
    """Write one number for each pair of tokens, (seq, seq): rows are queries, columns keys.

    What does not fit into a line is left out in the middle.
    """
    wide = max(map(columns_of, tokens))
    shown = list(range(len(tokens)))
    cut = len(tokens) > max(2 * EDGE, (80 - 4 - wide) // (COLUMN + 2))
    if cut:
        shown = [*shown[:EDGE], *shown[-EDGE:]]
    names = [fitting(tokens[place], COLUMN) for place in shown]
    heads = [" " * (COLUMN - columns_of(name)) + name for name in names]  # right-aligned over the numbers
    heads[EDGE:EDGE] = [CUT] * cut
    yield bold("  " + " " * wide + "  " + "  ".join(heads).rstrip())
    for token, row in zip(tokens, x[:, shown].tolist(), strict=True):
        numbers = [f"{number:{COLUMN}.4f}" if abs(number) < 100 else f"{number:{COLUMN}.1f}" for number in row]
        numbers[EDGE:EDGE] = [CUT] * cut
        yield "  " + padded(token, wide) + "  " + "  ".join(numbers)


def whole_block(stack: Stack, block: BoundBlock) -> Callable[..., Array] | None:
    """The function of `equations` for a whole block like this one; None where there is none."""
    own = block.attention
    if not math.isclose(own.scale, 1 / math.sqrt(own.head_dim)):
        return None
    if not own.rotated:
        return equations.pre_norm_block if stack.pre_norm else equations.post_norm_block
    norms = [block.modules.get(part.before) for part in block.parts]
    gated = all(isinstance(norm, RMSNorm) and not norm.plus for norm in norms) and stack.rotary is not None
    return gated_blocks.gated_block if gated else None


def functions(encoder: Encoder, trace: dict[str, Array]) -> set[Any]:
    """The functions of `equations` that compute the blocks: those of the steps, and of parts and whole blocks."""
    stack = encoder.stack
    used: set[Any] = {equations.split_heads, equations.additive_mask, equations.attention}
    for i, block in enumerate(stack.blocks):
        own = block.attention
        used |= {told.function for *_, told in steps(encoder, trace, i, 0)} | {whole_block(stack, block)}
        used |= {rotate, gated_blocks.rotary_attention} if own.rotated else {equations.self_attention}
        used |= {gated_blocks.gated_feed_forward if block.feed_forward.gate else equations.feed_forward}
        used |= {gated_blocks.share_heads} if own.key_heads < own.heads else set()
        used |= {equations.visible} if own.reach is not None else set()
    return used


def by_hand(encoder: Encoder, trace: dict[str, Array], i: int) -> list[str] | None:
    """Compute the block again by the one function for a whole block; None where no function is for such a block."""
    stack, block = encoder.stack, encoder.stack.blocks[i]
    function, x, last = whole_block(stack, block), trace[f"hidden_states.{i}"], block.parts[-1]
    if function is None:
        return None
    seq, eps, own = x.shape[1], block.modules[last.before or last.after].eps, block.attention
    if function is gated_blocks.gated_block:
        y = _gated_by_hand(stack, block, x, eps)
    else:
        mask = additive_mask(np.tri(seq, dtype=bool), x.dtype) if stack.causal else None
        bias = [term.shared(seq) for term in own.terms]
        y = function(x, plain_block(block), stack.heads, eps, block.feed_forward.activate, mask, *bias)
    computed = differs(y, trace[last.after or last.sum], "encoder")
    return [f"equations.{function.__name__}(hidden_states.{i}, ...)", computed]


def _gated_by_hand(stack: Stack, block: BoundBlock, x: Array, eps: float) -> Array:
    """A block like Llama's: RMSNorm before both parts, and nothing after."""
    own, feed = block.attention, block.feed_forward
    assert stack.rotary is not None  # or it is no such block

    def affine(path: str) -> gated_blocks.Map:
        return gated_blocks.Map(block.modules[path].weight, block.modules[path].bias)

    q, k, v, output = (affine(path) for path in (*own.maps, own.output))
    gate, up, down = (affine(path) for path in (feed.gate, feed.up, feed.output))
    q_norm, k_norm = (block.modules[path].weight if path else None for path in own.norms)
    first, second = (block.modules[part.before].weight for part in block.parts)
    arrays = gated_blocks.GatedBlock(q, k, v, output, first, gate, up, down, second, q_norm, k_norm)
    places = np.arange(x.shape[1])
    angles = stack.rotary.rotary(places, own.layer_type)
    mask = additive_mask(equations.visible(places, places, stack.causal, own.reach), x.dtype)
    return gated_blocks.gated_block(x, arrays, own.heads, own.key_heads, *angles, eps, feed.activate, mask)


def plain_block(block: BoundBlock) -> equations.Block:
    """A bound block's arrays as the equations expect them: (out, in); query, key and value separate."""

    def affine(path: str) -> Affine:
        module = block.modules[path]
        return Affine(module.weight.T if getattr(module, "transposed", False) else module.weight, module.bias)

    own, feed = block.attention, block.feed_forward
    qkv = [affine(path) for path in own.maps]
    if len(qkv) == 1:
        qkv = [Affine(*parts) for parts in zip(*(np.split(array, own.edges) for array in qkv[0]), strict=True)]
    q, k, v = qkv
    first, second = (affine(part.before or part.after) for part in block.parts)
    return equations.Block(q, k, v, affine(own.output), first, affine(feed.up), affine(feed.output), second)
