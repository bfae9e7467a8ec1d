# %% [markdown]
# # What a head does
#
# A picture of attention weights shows where a head looks. It does not show whether that matters. To know what a part of
# a model does, take it away, or put other values in its place, and look at what comes out. Here heads, blocks and
# positions are knocked out (papers call it *ablation*), one text's values are put into another's (*activation
# patching*), and the hidden state of every block is asked what it would predict (*lens*). Each finding is tried on ten
# texts or words, and the text says how often it held.
#
# * Michel, Levy, Neubig 2019, *Are Sixteen Heads Really Better than One?*
#   ([arXiv:1905.10650](https://arxiv.org/abs/1905.10650)): heads knocked out one by one.
# * nostalgebraist 2020, *interpreting GPT: the logit lens*.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import study
import texts

import minibert
from minibert.equations.blocks import softmax

# two right programs differ in the last bits of a matrix product; measured here: 4e-6
CLOSE = 2e-5

# %% [markdown]
# ## Step 1: a run that can be changed
#
# `trace` names every intermediate of a run. `change` takes such a name and a function: the run goes on with what the
# function gives. `minibert.knock_out` makes the classic changes; a head is knocked out by attention weights of 0.

# %%
model = study.load("bert")
encoder = minibert.load_encoder(model.source)
blocks, heads = len(encoder.stack.blocks), encoder.stack.heads
batch = encoder.tokenize("The bank of the river was muddy.")
plain = encoder.trace(**batch)


def without_head_2(weights: np.ndarray) -> np.ndarray:
    weights[:, 2] = 0  # (texts, heads, query, key)
    return weights


changed = encoder.trace(**batch, change={"attentions.1": without_head_2})
for i in range(blocks + 1):
    moved = np.abs(changed[f"hidden_states.{i}"] - plain[f"hidden_states.{i}"]).max()
    print(f"what enters block {i}: moved by up to {moved:.2f}" if i < blocks else f"what leaves: up to {moved:.2f}")
    assert (moved < CLOSE) == (i < 2), "nothing moves before block 1 has worked"
same = encoder(**batch, change=minibert.knock_out(encoder, heads=[(1, 2)]))
assert np.abs(same - changed[f"hidden_states.{blocks}"]).max() < CLOSE

# %% [markdown]
# ## Step 2: ten questions with a right answer
#
# Of three texts the first has to be nearer to the third, which means the same, than to the second, which shares words
# with it. The *margin* is the difference of the two cosines: above 0 the answer is right. There are ten such questions,
# those of `006_blocks.py`. all-MiniLM-L6-v2 is right in seven of them, with a mean margin of 0.132.

# %%
together = encoder.tokenize([text for three in texts.QUESTIONS for text in three])


def vectors(batch: dict[str, np.ndarray], change: dict | None = None) -> np.ndarray:
    """Give the mean of each text's tokens, of length 1: (texts, dim)."""
    mean = (encoder(**batch, change=change) * batch["attention_mask"][..., None]).sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def margins(change: dict | None = None) -> np.ndarray:
    first, words, meaning = vectors(together, change).reshape(-1, 3, encoder.dim).swapaxes(0, 1)
    return np.vecdot(first, meaning) - np.vecdot(first, words)


def told(found: np.ndarray) -> str:
    """Say how a change moves the ten margins."""
    right, fallen = np.count_nonzero(found > 0), np.count_nonzero(found < usual)
    return f"margins {texts.spread(found, 3)}; {right} of {len(found)} right, {fallen} smaller"


usual = margins()
print(f"margins: {usual.round(3)}, mean {usual.mean():.3f}; {np.count_nonzero(usual > 0)} of {len(usual)} right")
assert usual.shape == (10,) and np.abs(usual).max() < 2
if model.is_minilm:
    assert np.count_nonzero(usual > 0) == 7 and round(float(usual.mean()), 3) == 0.132

# %% [markdown]
# ## Step 3: every head alone
#
# Each head is knocked out by itself. In all-MiniLM-L6-v2 most are hardly missed: 62 of 72 move the mean margin by less
# than 0.01, and of 720 answers 3 become wrong. One is missed: without head 10 of block 5 the mean margin falls by
# 0.055, the next one's by 0.020. Without it 9 of the 10 margins fall; of 6 questions it is the head that is missed
# most. Michel and others saw the same in larger models.

# %%
lost = np.array(
    [[usual - margins(minibert.knock_out(encoder, heads=[(i, head)])) for head in range(heads)] for i in range(blocks)]
)  # (blocks, heads, questions)
mean = lost.mean(axis=-1)
block, head = np.unravel_index(mean.argmax(), mean.shape)
wrong = int(np.count_nonzero((usual - lost <= 0) & (usual > 0)))
most_missed = int(np.count_nonzero(lost.reshape(mean.size, -1).argmax(axis=0) == mean.argmax()))
fallen = int(np.count_nonzero(lost[block, head] > 0))
print(f"most missed: block {block}, head {head}: the mean margin falls by {mean.max():.3f}", end="")
print(f", without the next one by {np.sort(mean.ravel())[-2]:.3f}")
print(f"the ten margins fall by {texts.spread(lost[block, head], 3)}: {fallen} of 10 fall, and of ", end="")
print(f"{most_missed} of 10 questions it is missed most")
print(f"of {mean.size} heads {np.count_nonzero(np.abs(mean) < 0.01)} move the mean by less than 0.01")
print(f"{wrong} of {lost.size} answers become wrong")
# the head that is found is needed, and not by the way it was counted: taken out alone it does what the table says
assert abs(margins(minibert.knock_out(encoder, heads=[(block, head)])).mean() - (usual.mean() - mean.max())) < CLOSE
if model.is_minilm:
    assert (block, head) == (5, 10) and (fallen, most_missed, wrong) == (9, 6, 3)
    assert np.abs(np.sort(mean.ravel())[-2:] - [0.020, 0.055]).max() < 6e-4
    assert np.count_nonzero(np.abs(mean) < 0.01) == 62
else:
    print(f"head 10 of block 5 is all-MiniLM-L6-v2's; not for this model, {model.name}")

limit = np.abs(mean).max() or 1.0
ax = plt.subplots(figsize=(8, 4), layout="constrained")[1]
image = ax.imshow(mean, cmap="RdBu_r", vmin=-limit, vmax=limit)
ax.set(xlabel="head", ylabel="block", title="how much the mean margin falls without a head")
ax.figure.colorbar(image)
study.show(
    ax, "lost", of=model.name,
    alt="table: a row a block, a column a head, coloured by how much the mean margin falls without that head",
)  # fmt: skip

# %% [markdown]
# ## Step 4: many heads, and whole blocks
#
# One head is hardly missed. Are all of a block? Is the block? In all-MiniLM-L6-v2 blocks 0 to 4 can each lose all their
# heads: 7 of 10 answers stay right, and the mean margin stays between 0.114 and 0.154; without those of block 3 or 4 it
# is even larger than with them. These questions need the last block's heads: without them it is 0.036, and 9 of the
# 10 margins fall.
#
# A block is more than its heads. Without the feed-forward of block 0 the mean is 0.102, without both parts 0.097.
# (Both parts: heads at weight 0 would still add the bias of their output map. With that bias it is 0.069.) But
# `blocks=[0]` also takes the two norms after these parts, and leaves -0.044: all 10 margins fall, and each of them
# lower than by the other three changes. So these answers need block 0's norms more than its parts: the blocks behind it
# have learned from rows that had passed them.

# %%
headless = np.array([margins(minibert.knock_out(encoder, heads=[(i, h) for h in range(heads)])) for i in range(blocks)])
skipped = np.array([margins(minibert.knock_out(encoder, blocks=[i])) for i in range(blocks)])
for i in range(blocks):
    print(f"block {i} without its heads: {told(headless[i])}")
    print(f"block {i} without all of it: {told(skipped[i])}")
trace = encoder.trace(**batch, change=minibert.knock_out(encoder, blocks=[0]))
assert np.array_equal(trace["hidden_states.1"], trace["hidden_states.0"]), "what enters it leaves it"
no_feed_forward = {"encoder.layer.0.output.dense": np.zeros_like}
no_parts = no_feed_forward | {"encoder.layer.0.attention.output.dense": np.zeros_like}
with_bias = no_feed_forward | minibert.knock_out(encoder, heads=[(0, head) for head in range(heads)])
feedless, partless, biased = (margins(change) for change in (no_feed_forward, no_parts, with_bias))
print(f"block 0 without its feed-forward: {told(feedless)}\nwithout both parts, the norms left: {told(partless)}")
print(f"with the bias that heads at weight 0 leave: {told(biased)}")
lowest = int(np.count_nonzero(skipped[0] < np.minimum(headless[0], np.minimum(feedless, partless))))
print(f"without all of block 0 the margin is the lowest of these four in {lowest} of 10 questions")
if model.is_minilm:
    means = np.array([feedless, partless, biased, skipped[0], headless[-1]]).mean(axis=1)
    assert np.abs(means - [0.102, 0.097, 0.069, -0.044, 0.036]).max() < 1e-3
    means = headless[:5].mean(axis=1)
    assert abs(means.min() - 0.114) < 1e-3 and abs(means.max() - 0.154) < 1e-3
    assert np.count_nonzero(headless[:5] > 0, axis=1).tolist() == [7] * 5
    assert np.all((means > usual.mean()) == [False, False, False, True, True])
    assert np.count_nonzero(headless[-1] < usual) == 9 and np.all(skipped[0] < usual) and lowest == 10

# %% [markdown]
# ## Step 5: without positions
#
# `006_blocks.py` found the cosine of "The cat chased the mouse." and "The mouse chased the cat." to be 0.985, and of
# ten such pairs 0.970 to 0.996. Is the rest all that the model knows of the order? Without position rows both texts are
# the same set of rows, and the cosine is 1, in all ten. So the little that is between the two comes from the positions,
# and from nothing else.
#
# In all-MiniLM-L6-v2 nine of ten margins of step 2 fall too, and 4 answers are right instead of 7. Is that the order?
# Only in part. With row 5 at every place the order is lost as well, and 7 answers are right; 6 margins fall. A part
# that is taken out leaves values that no block has met in training; here the rows of zeros do the rest of the harm.

# %%
no_positions = minibert.knock_out(encoder, positions=True)
row_5 = encoder.embeddings.position_embeddings.weight[5]
everywhere = {"embeddings.position_embeddings": lambda rows: np.broadcast_to(row_5, rows.shape)}
turned = [encoder.tokenize(list(pair)) for pair in texts.ROLES]
between = [[float(np.vecdot(*vectors(pair, change))) for pair in turned] for change in (None, no_positions, everywhere)]
print(f"who chased whom: cosine {between[0][0]:.3f}; without positions {between[1][0]:.6f}")
print(f"of ten pairs {texts.spread(between[0], 3)}; without positions {texts.spread(between[1], 6)}")
assert np.abs(np.array(between[1:]) - 1).max() < CLOSE, "in both the order is lost"
assert max(between[0]) < 1 - 100 * CLOSE
bag, same_row = margins(no_positions), margins(everywhere)
print(f"without positions: {told(bag)}\nwith row 5 at every place: {told(same_row)}")
if model.is_minilm:
    assert [np.count_nonzero(found > 0) for found in (bag, same_row)] == [4, 7]
    assert [np.count_nonzero(found < usual) for found in (bag, same_row)] == [9, 6]

# %% [markdown]
# ## Step 6: patching, or where the difference sits
#
# Two texts differ in one word. Run the second, but give that one token, where it enters block `i`, the vector that it
# has in the first. How far does this move the second text towards the first? Before block 0 all
# the way: there nothing else differs. After the last block only as far as the token's own part of the mean.
#
# In all-MiniLM-L6-v2, for "river" and "city", it is still 0.90 before the last block, and 0.36 after it. Of ten such
# pairs it is 0.64 to 0.99 before the last block, 0.25 to 0.43 after it, and in all ten the last block is the one that
# takes the most. So the difference stays at the token for five blocks, and the last one hands it to the others. That
# agrees with step 4: of the last block these answers need the heads. How much stays depends on the word: the least is
# that of "good" and "bad".


# %%
def shares(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> np.ndarray:
    """Measure how far the patched token goes, before block 0 and after each block."""
    (place,) = np.flatnonzero(first["input_ids"][0] != second["input_ids"][0])  # one token, at one place
    theirs = encoder.trace(**first)
    start, goal = (encoder(**batch)[0].mean(axis=0) for batch in (second, first))

    def patched(i: int) -> float:
        def put(values: np.ndarray) -> np.ndarray:
            values[0, place] = theirs[f"hidden_states.{i}"][0, place]
            return values

        found = encoder(**second, change={f"hidden_states.{i}": put})[0].mean(axis=0)
        return float((found - start) @ (goal - start) / ((goal - start) @ (goal - start)))

    alone = (theirs[f"hidden_states.{blocks}"] - encoder(**second))[0, place] / len(theirs["hidden_states.0"][0])
    way = np.array([patched(i) for i in range(blocks + 1)])
    assert abs(way[0] - 1) < 1e-3
    own = alone @ (goal - start) / ((goal - start) @ (goal - start))
    assert abs(way[-1] - own) < 1e-3, "the token's own part of the mean"
    return way


pairs = [[encoder.tokenize(text) for text in pair] for pair in texts.SWAPS]
first, second = pairs[0]
ways = np.array([shares(*pair) for pair in pairs])
print("share of the way, patched before block 0 and after each block:")
for (text, _), way in zip(texts.SWAPS, ways, strict=True):
    print(f"{text:34} {way.round(2)}")
last_takes_most = int(np.count_nonzero(np.diff(ways).argmin(axis=1) == blocks - 1))
print(f"before the last block {texts.spread(ways[:, -2])}; after it {texts.spread(ways[:, -1])}; ", end="")
print(f"the last block takes the most in {last_takes_most} of {len(ways)}")
if model.is_minilm:
    ends = [(round(float(column.min()), 2), round(float(column.max()), 2)) for column in ways[:, -2:].T]
    assert ends == [(0.64, 0.99), (0.25, 0.43)] and last_takes_most == 10 and ways[:, -2].argmin() == 1
    assert np.abs(ways[0, -2:] - [0.90, 0.36]).max() < 6e-3
else:
    print(f"the text above quotes all-MiniLM-L6-v2; not for this model, {model.name}")

# %% [markdown]
# ## Step 7: a lens in every block
#
# GPT-2 predicts by its last norm and its word table. The same two can be put after any block: what would it predict
# if it ended here? After the last block that is the prediction itself.
#
#     lens_i = LayerNorm(hidden_states.i) @ wte^T,   and after the last block the logits
#
# (The last hidden state is a sum of what all heads and feed-forwards have added. So the logit itself can be parted into
# their shares: *direct logit attribution*. The page of `minibert explain --html` shows it.)
#
# The small GPT-2 of `007_training.py` knows words, letter by letter. After "wonderfu" it says "l". Before block 0 the
# lens says "u", the letter that is there: the same table stands at the entrance. Block 0 finds the "l" (0.62), the
# other two make it surer (0.81). Of ten words: before block 0 the lens says the letter that is there in all ten; after
# block 0 it says what the model will say in nine. But it is surer with each block in two alone: in the other eight a
# later block takes some of the probability back.


# %%
def lenses_of(ids: list[int]) -> list[np.ndarray]:
    """Give the logits for the next token, before block 0 and after each block."""
    found = gpt2.trace([ids])
    made = [gpt2["ln_f"](found[f"hidden_states.{i}"][0, -1:])[0] @ table.T for i in range(depth)]
    return [*made, found[f"hidden_states.{depth}"][0, -1] @ table.T]  # the last has passed the norm


gpt2, ids = study.gpt2_encoder()
shipped = not os.environ.get(study.VARIABLES["gpt2"])
rows = [gpt2.tokenize(word)["input_ids"][0].tolist() for word in texts.BEGUN] if shipped else [ids]
ids, depth, table = rows[0], len(gpt2.stack.blocks), gpt2.embeddings.wte.weight
lenses = lenses_of(ids)
predicted = int(lenses[-1].argmax())
for i, lens in enumerate(lenses):
    rank = int(np.count_nonzero(lens > lens[predicted])) + 1
    best, token = gpt2.tokens([int(lens.argmax()), predicted])
    chance = softmax(lens.copy())[predicted]
    print(f"after {i} blocks: {token!r} has probability {chance:.3f}, place {rank}; the likeliest is {best!r}")
logits = gpt2.logits([ids], head="next_word")[0, -1]
assert np.abs(lenses[-1] - logits).max() < CLOSE * max(1, np.abs(logits).max())
there, early, surer = [], [], []
for row in rows:
    found = lenses_of(row)
    said = [int(lens.argmax()) for lens in found]
    chances = [float(softmax(lens.copy())[said[-1]]) for lens in found]
    there.append(said[0] == row[-1])
    early.append(said[1] == said[-1])
    surer.append(bool(np.all(np.diff(chances) > 0)))
    print(f"{''.join(gpt2.tokens(row[1:])):10} lens says {gpt2.tokens(said)}; the last one's {np.round(chances, 3)}")
print(f"the letter that is there before block 0: {sum(there)} of {len(rows)}; ", end="")
print(f"the prediction after block 0: {sum(early)}; surer with each block: {sum(surer)}")
if shipped:
    chances = [float(softmax(lens.copy())[predicted]) for lens in lenses]
    assert gpt2.tokens([int(lens.argmax()) for lens in lenses]) == ["u", "l", "l", "l"]
    assert np.abs(np.array(chances) - [0.000, 0.625, 0.719, 0.806]).max() < 2e-3
    assert len(rows) == 10 and (sum(there), sum(early), sum(surer)) == (10, 9, 2)
else:
    print("what the text above says is the small GPT-2's; not for this model")

# %% [markdown]
# ## Step 8: the heads that a prediction needs
#
# Each head of GPT-2 is knocked out, and the log of the prediction's probability is looked at again. Below 0: the
# prediction needs the head. Above 0: without the head it is surer.
#
# After "wonderfu" two heads of block 0 are needed, head 0 (-1.19) and head 2 (-0.60); no other moves it by more than
# 0.2. Without both it moves by -4.96, far more than their sum: each can do some of the other's work. Over ten words the
# head that is needed most moves it by -1.22 to -0.06, and it changes from word to word: seven different heads. The last
# finding holds more often: without the two heads that are needed most it moves by more than their sum in 8 of 10 words.


# %%
def log_probability(ids: list[int], predicted: int, change: dict | None = None) -> float:
    logits = gpt2.logits([ids], head="next_word", change=change)[0, -1].astype(np.float64)
    return float(logits[predicted] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def moves(ids: list[int], predicted: int) -> np.ndarray:
    """Measure how far each head moves the log probability: (blocks, heads)."""
    knocked = [[minibert.knock_out(gpt2, heads=[(i, j)]) for j in range(gpt2.stack.heads)] for i in range(depth)]
    found = np.array([[log_probability(ids, predicted, change) for change in row] for row in knocked])
    return found - log_probability(ids, predicted)


most, largest, both, more = [], [], [], 0
for row in rows:
    last = int(gpt2.logits([row], head="next_word")[0, -1].argmax())
    found = moves(row, last)
    two = [tuple(map(int, np.unravel_index(place, found.shape))) for place in np.argsort(found.ravel())[:2]]
    gone = log_probability(row, last, minibert.knock_out(gpt2, heads=two)) - log_probability(row, last)
    most.append(two[0])
    largest.append(float(found.min()))
    both.append(gone)
    more += gone < sum(found[place] for place in two)
    print(f"{''.join(gpt2.tokens(row[1:])):10} needed most, (block, head): {two[0]} {found[two[0]]:.2f}, ", end="")
    print(f"{two[1]} {found[two[1]]:.2f}; without both {gone:.2f}")
    if row == ids:
        needed = found
print(f"{len(set(most))} heads are needed most in {len(rows)} words; the largest move {texts.spread(largest)}")
print(f"without the two the move is more than their sum in {more} of {len(rows)} words")
usually = log_probability(ids, predicted)
assert abs(log_probability(ids, predicted, minibert.knock_out(gpt2)) - usually) < CLOSE, "nothing is knocked out"
if shipped:
    assert most[0] == (0, 0) and np.abs(needed[0, [0, 2]] - [-1.19, -0.60]).max() < 0.01
    assert np.sort(np.abs(needed).ravel())[-3] < 0.2 and abs(both[0] + 4.96) < 0.02
    assert len(set(most)) == 7 and more == 8
    assert (round(min(largest), 2), round(max(largest), 2)) == (-1.22, -0.06)
else:
    print("what the text above says is the small GPT-2's; not for this model")
assert needed.shape == (depth, gpt2.stack.heads) and np.isfinite(needed).all() and np.abs(needed).max() > CLOSE

# %% [markdown]
# ## Exercises
#
# 1. All heads of a block are knocked out. What does its attention add to each token?
# 2. Without positions BERT cannot tell who chased whom. Can GPT-2?
# 3. Put the first text's values of *all* tokens into the second, after block `i`. What comes out?
