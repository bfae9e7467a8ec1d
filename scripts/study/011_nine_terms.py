# %% [markdown]
# # Nine terms: why may three tables be added, and which of them decides where a head looks?
#
# BERT adds three rows for each token: the rows of its word, its position and its token type. Each number of the sum is
# a mixture. Is anything lost? How can a head then look by the position alone, as head 2 of block 0 does in
# `where_heads_look.py`? Step 1 shows that nothing is lost: the two large tables use different directions, so that word
# and position can be read from their sum. A head does not even take the sum apart. A score is a product of two sums,
# and that is the sum of the products of their parts. So the score splits by itself, exactly, and a head's maps can make
# one term large and another small.
#
# This file reads both rows from their sum, splits the scores of block 0, and measures which term decides in each head.
# `terms_removed.py` goes on.
#
# * Ke, He, Liu 2021, *Rethinking Positional Encoding in Language Pre-training* (TUPE,
#   [arXiv:2006.15595](https://arxiv.org/abs/2006.15595)): the authors call both mixed terms, word with position and
#   position with word, noise, and leave them out.

# %%
import numpy as np
import study
import texts

import minibert
from minibert.equations.blocks import Linear, split_heads
from minibert.equations.nine_terms import normed_parts, score_terms
from minibert.show import plot
from minibert.show.attention import PARTS, shares_of, terms_of

# two right programs differ in the last bits of a matrix product; measured here: 2e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: two tables, two sets of directions
#
# A row of 384 numbers is an arrow. Its part in a *direction*, an arrow of length 1, is one number: the product of the
# two. A table's rows differ much in some directions and little in others; `svd` sorts the directions by that.
#
# In all-MiniLM-L6-v2 the rows of the position table differ in few directions: 11 of 384 have 94 % of their variance. In
# the same 11 directions the rows of the word table hardly differ: they have 0.3 % of that table's variance there, a
# tenth of what 11 random directions would have (2.9 %).
#
# So the sum can be read. The cell adds a random word's row, a random position's row and the row of token type 0, 4,000
# times. First it looks at the 11 directions alone: the nearest position row is the right one for all 4,000. It
# subtracts this row: the nearest word row is the right one for all 4,000.

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
word_table, position_table, type_table = (
    np.array(encoder[f"embeddings.{name}_embeddings"].weight, np.float32) for name in ("word", "position", "token_type")
)
mean_word = word_table.mean(axis=0)
_, sizes, directions = np.linalg.svd(position_table - position_table.mean(axis=0), full_matrices=False)
few = 1 + int(np.searchsorted(np.cumsum(sizes**2) / np.sum(sizes**2), 0.9))  # they have 90 % or more
directions = directions[:few]
of_positions = np.sum(sizes[:few] ** 2) / np.sum(sizes**2)
of_words = np.sum(((word_table - mean_word) @ directions.T) ** 2) / np.sum((word_table - mean_word) ** 2)
print(f"{few} of {encoder.dim} directions have {of_positions:.0%} of the position table's variance, ", end="")
print(f"{of_words:.1%} of the word table's; by chance {few / encoder.dim:.1%}")


def nearest(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return for each row the number of the nearest row of a table."""
    return (np.sum(table**2, axis=1) - 2 * rows @ table.T).argmin(axis=1)


right = np.zeros(2, int)
for seed in range(10):
    drawn = np.random.default_rng(seed)
    which_word, which_place = (drawn.integers(len(table), size=400) for table in (word_table, position_table))
    total = word_table[which_word] + position_table[which_place] + type_table[0]
    read_place = nearest((total - type_table[0] - mean_word) @ directions.T, position_table @ directions.T)
    read_word = nearest(total - type_table[0] - position_table[read_place], word_table)
    right += np.sum(read_place == which_place), np.sum(read_word == which_word)
print(f"of 4,000 sums the {few} directions give the position in {right[0] / 40:.2f} %, ", end="")
print(f"and the nearest row then the word in {right[1] / 40:.2f} %")
if model.is_minilm:
    assert (few, round(100 * of_positions), round(100 * of_words, 1)) == (11, 94, 0.3) and right.tolist() == [4000] * 2

# %% [markdown]
# ## Step 2: three parts, through LayerNorm
#
#     x = word + position + rest        y = (x - mean(x)) / std(x) * weight + bias
#
# Subtracting the mean and multiplying by `weight` can be done part by part: the results add up. Only `std` belongs to
# the whole sum. Given this one number of a token, LayerNorm is *linear*: each part is centred, divided by the token's
# `std` and multiplied by `weight`. We call the remainder, the token type's row and `bias`, the *rest*.

# %%
batch = encoder.tokenize("The bank of the river was muddy.")
tokens = encoder.tokens(batch["input_ids"][0])
trace = encoder.trace(**batch)
word, position, token_type = (trace[f"embeddings.{name}_embeddings"][0] for name in ("word", "position", "token_type"))
norm = encoder["embeddings.LayerNorm"]
parts = np.stack([word, np.broadcast_to(position, word.shape), token_type]).astype(np.float64)
entered = normed_parts(parts, norm.weight, norm.bias, norm.eps)
for name, rows in zip(PARTS, entered, strict=True):
    print(f"{name:8} {rows.shape}, mean length {np.linalg.norm(rows, axis=-1).mean():.2f}")
assert np.abs(entered.sum(axis=0) - trace["hidden_states.0"][0]).max() < CLOSE, "what enters block 0"

# %% [markdown]
# ## Step 3: nine terms
#
#     q = q_word + q_position + q_rest        k = k_word + k_position + k_rest
#     score = q . k / sqrt(head_dim) = (q_word . k_word + q_word . k_position + ... + q_rest . k_rest) / sqrt(head_dim)
#
# The maps to queries and keys are linear too; their biases join the rest. Three parts of the query meet three parts of
# the key: nine terms. "Position with word" is the query's position with the key's word.
#
# A head chooses only by its two maps. In the sentence above the position's part enters block 0 half as long as the
# word's part. In all-MiniLM-L6-v2's queries it is 2.5 times as long in head 2, and 0.6 times in head 0, for the same
# rows. The reason is step 1: word rows and position rows have different directions, and a map stretches some
# directions and shrinks others. So tables may be added: a map can read from the sum the part that it needs.

# %%
part, heads = "encoder.layer.0.attention.self", encoder.stack.heads
maps = [encoder[f"{part}.{name}"] for name in ("query", "key")]
query, key = (Linear(each.weight, each.bias) for each in maps)
terms = score_terms(entered, query, key, heads, scale=1 / np.sqrt(encoder.dim // heads))
print(f"{terms.shape}: query's part, key's part, head, query, key")
print(f"head 2: the query of {tokens[3]!r} with the key of {tokens[2]!r}, whose parts are {', '.join(PARTS)}")
for name, row in zip(PARTS, terms[:, :, 2, 3, 2], strict=True):
    print(f"  query's {name:8} {row.round(2)}")
print(f"  sum {terms[:, :, 2, 3, 2].sum():.2f}, the model's score {trace[f'{part}.scores'][0, 2, 3, 2]:.2f}")
assert np.abs(terms.sum(axis=(0, 1)) - trace[f"{part}.scores"][0]).max() < CLOSE
assert np.abs(terms - terms_of(encoder, batch)).max() < CLOSE, "one call does all of this, for any model that allows it"
lengths = np.linalg.norm(split_heads(entered[:2] @ query.weight.T, heads), axis=-1).mean(axis=-1)  # (2, heads)
by_word = lengths[1] / lengths[0]
print(f"length of the position's part by the word's, in each head's queries: {by_word.round(2)}")
if model.is_minilm:
    enter = np.linalg.norm(entered[:2], axis=-1).mean(axis=-1)
    assert [round(float(found), 1) for found in (enter[1] / enter[0], by_word[2], by_word[0])] == [0.5, 2.5, 0.6]

# %% [markdown]
# ## Step 4: which term decides
#
# Softmax sees only how scores differ from key to key. So the *share* of a term is its part of the scores' variance over
# the keys: how much of their differences it explains. The nine shares of a head have the sum 100 %. A term that works
# against the sum has a share below 0, and then another may have more than 100 %: a part of it is taken back.
#
# In the ten sentences of `texts.py` head 2 of all-MiniLM-L6-v2 is position with position (91 to 98 %), heads 0 and 1
# are mostly word with word (57 to 74 %, and 50 to 85 %). Head 9 is rest with word (76 to 99 %): it looks at certain
# words, no matter which token asks. `[CLS]` alone gets 0.26 to 0.41 of its weight.
#
# TUPE calls both mixed terms noise. Word with position has at most 15 % in any head of these sentences; but position
# with word has 20 to 63 % in head 3. In ten texts of 175 to 202 tokens it is the other way round: word with position
# has 40 to 45 % in head 11, position with word at most 4 % in any head. In head 9 word with position works against the
# sum there (-52 to -48 %), and so rest with word has 135 to 141 %.

# %%
kinds = {"sentences": texts.SENTENCES, "long texts": texts.long_texts()}
shares = {
    kind: 100 * np.stack([shares_of(encoder, terms_of(encoder, encoder.tokenize(text))) for text in some])
    for kind, some in kinds.items()
}  # (texts, query's part, key's part, heads)
WORD, POSITION, REST = range(3)
NAMED = {f"{PARTS[a]} with {PARTS[b]}": (a, b) for a, b in ((0, 0), (1, 1), (2, 0), (0, 1), (1, 0))}
for kind, found in shares.items():
    for name, (a, b) in NAMED.items():
        most = int(found[:, a, b].mean(axis=0).argmax())
        print(f"{kind}: {name} is most in head {most}: {texts.spread(found[:, a, b, most], 0)} %")
if model.is_minilm:
    short, long = (found.round().astype(int) for found in shares.values())
    said = [short[:, 1, 1, 2], short[:, 0, 0, 0], short[:, 0, 0, 1], short[:, 2, 0, 9], short[:, 1, 0, 3]]
    said += [long[:, 0, 1, 11], long[:, 1, 0, 9], long[:, 2, 0, 9]]
    ends = [(91, 98), (57, 74), (50, 85), (76, 99), (20, 63), (40, 45), (-52, -48), (135, 141)]
    assert [(each.min(), each.max()) for each in said] == ends
    assert short[:, 0, 1].max() == 15 and long[:, 1, 0].max() == 4
study.show(
    plot.term_shares(shares["sentences"].mean(axis=0) / 100, PARTS), "shares", of=model.name,
    alt="a table of colours: a row for each of the nine terms, a column for each head, the mean share of ten sentences",
)  # fmt: skip

# %% [markdown]
# ## Exercises
#
# 1. Concatenate a word's row and its position's row instead of adding them. Which map computes the same queries?
# 2. The terms with the key's rest are small in BERT, and in GPT-2 their share is 0. Why?
# 3. Two words of a sentence swap places. How does position with position change?
