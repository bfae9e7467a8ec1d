# %% [markdown]
# # What a head does
#
# A picture of attention weights shows where a head looks. It does not show whether that matters. To know what a part of
# a model does, take it away, or put other values in its place, and look at what comes out. Here heads, blocks and
# positions are knocked out, one text's values are put into another's (*patching*), and the hidden state of every block
# is asked what it would predict (*lens*).
#
# * Michel, Levy, Neubig 2019, *Are Sixteen Heads Really Better than One?*
#   ([arXiv:1905.10650](https://arxiv.org/abs/1905.10650)): heads knocked out one by one.
# * nostalgebraist 2020, *interpreting GPT: the logit lens*.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import study

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
# ## Step 2: a question with a right answer
#
# Of three texts the first has to be nearer to the third, which means the same, than to the second, which shares words
# with it. The *margin* is the difference of the two cosines: above 0 the answer is right.

# %%
QUESTIONS = (
    ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
    ("The bank raised its interest rates.", "The bank of the river was muddy.", "Loans have become more expensive."),
    ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
)
batches = [[encoder.tokenize(text) for text in texts] for texts in QUESTIONS]


def vector(batch: dict[str, np.ndarray], change: dict | None = None) -> np.ndarray:
    mean = encoder(**batch, change=change)[0].mean(axis=0)
    return mean / np.linalg.norm(mean)


def margins(change: dict | None = None) -> np.ndarray:
    found = [[vector(batch, change) for batch in texts] for texts in batches]
    return np.array([first @ meaning - first @ words for first, words, meaning in found])


usual = margins()
print(f"margins: {usual.round(3)}, mean {usual.mean():.3f}")
assert usual.shape == (3,) and np.abs(usual).max() < 2
if model.is_minilm:
    assert np.all(usual > 0.1)

# %% [markdown]
# ## Step 3: every head alone
#
# Each head is knocked out by itself. In all-MiniLM-L6-v2 most are hardly missed: 59 of 72 move the mean margin by less
# than 0.01. One is missed: head 10 of block 5. Michel and others saw the same in larger models.

# %%
lost = np.array(
    [[usual - margins(minibert.knock_out(encoder, heads=[(i, head)])) for head in range(heads)] for i in range(blocks)]
)  # (blocks, heads, questions)
mean = lost.mean(axis=-1)
block, head = np.unravel_index(mean.argmax(), mean.shape)
wrong = int(np.count_nonzero((usual - lost <= 0) & (usual > 0)))
print(f"most missed: block {block}, head {head}: the mean margin falls by {mean.max():.3f}")
print(f"of {mean.size} heads {np.count_nonzero(np.abs(mean) < 0.01)} move it by less than 0.01")
print(f"{wrong} of {lost.size} answers become wrong")
# the head that is found is needed, and not by the way it was counted: taken out alone it does what the table says
assert abs(margins(minibert.knock_out(encoder, heads=[(block, head)])).mean() - (usual.mean() - mean.max())) < CLOSE
if model.is_minilm:
    assert (block, head) == (5, 10) and round(float(mean.max()), 3) == 0.071
    assert np.sort(mean.ravel())[-2] < 0.03 and wrong == 1 and np.count_nonzero(np.abs(mean) < 0.01) == 59
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
# One head is hardly missed. Are all of a block? Is the block? In all-MiniLM-L6-v2 block 0 can lose all its heads: the
# mean margin even rises a little, from 0.260 to 0.270. Without its feed-forward it is 0.216, without both parts 0.179.
# But `blocks=[0]` also takes the two norms after these parts, and leaves 0.057. So these three answers need block 0's
# norms more than its parts: the blocks behind it have learned from rows that had passed them. Of the last block they
# need the heads: without them the margin is 0.109.

# %%
headless = np.array([margins(minibert.knock_out(encoder, heads=[(i, h) for h in range(heads)])) for i in range(blocks)])
skipped = np.array([margins(minibert.knock_out(encoder, blocks=[i])) for i in range(blocks)])
for i in range(blocks):
    print(
        f"block {i}: mean margin {headless[i].mean():.3f} without its heads, {skipped[i].mean():.3f} without all of it"
    )
trace = encoder.trace(**batch, change=minibert.knock_out(encoder, blocks=[0]))
assert np.array_equal(trace["hidden_states.1"], trace["hidden_states.0"]), "what enters it leaves it"
no_feed_forward = {"encoder.layer.0.output.dense": np.zeros_like}
no_parts = no_feed_forward | minibert.knock_out(encoder, heads=[(0, head) for head in range(heads)])
feedless, partless = margins(no_feed_forward).mean(), margins(no_parts).mean()
print(f"block 0: {feedless:.3f} without its feed-forward, {partless:.3f} without both parts, the norms left")
if model.is_minilm:
    assert abs(feedless - 0.216) < 1e-3 and abs(partless - 0.179) < 1e-3
    assert round(float(usual.mean()), 3) == 0.260
    assert (round(float(headless[0].mean()), 3), round(float(skipped[0].mean()), 3)) == (0.270, 0.057)
    assert headless[-1].mean() == headless.mean(axis=1).min() and round(float(headless[-1].mean()), 3) == 0.109

# %% [markdown]
# ## Step 5: without positions
#
# `006_blocks.py` found the cosine of "The cat chased the mouse." and "The mouse chased the cat." to be 0.985. Is the
# rest, 0.015, all that the model knows of the order? Without position rows both texts are the same set of rows, and the
# cosine is 1. So the little that is between the two comes from the positions, and from nothing else.
#
# In all-MiniLM-L6-v2 the margins fall too, the third to -0.102: a wrong answer. Is that the order? Only in part. With
# row 5 at every place the order is lost as well, and the margin is -0.005. A part that is taken out leaves values that
# no block has met in training; here the rows of zeros do the rest of the harm.

# %%
cat, mouse = (encoder.tokenize(text) for text in ("The cat chased the mouse.", "The mouse chased the cat."))
no_positions = minibert.knock_out(encoder, positions=True)
between = [float(vector(cat, change) @ vector(mouse, change)) for change in (None, no_positions)]
print(f"who chased whom: cosine {between[0]:.3f}; without positions {between[1]:.6f}")
assert abs(between[1] - 1) < CLOSE and between[0] < 1 - 100 * CLOSE
row_5 = encoder.embeddings.position_embeddings.weight[5]
everywhere = {"embeddings.position_embeddings": lambda rows: np.broadcast_to(row_5, rows.shape)}
bag, same_row = margins(no_positions), margins(everywhere)
print(f"margins without positions: {bag.round(3)}; with row 5 at every place: {same_row.round(3)}")
assert abs(vector(cat, everywhere) @ vector(mouse, everywhere) - 1) < CLOSE, "here too the order is lost"
if model.is_minilm:
    assert abs(bag[2] + 0.102) < 1e-3 and abs(same_row[2] + 0.005) < 1e-3

# %% [markdown]
# ## Step 6: patching, or where the difference sits
#
# Two texts differ in one word. Run the second, but give that one token, where it enters block `i`, the vector that it
# has in the first. How much of the way from the second text's vector to the first's does that go? Before block 0 all
# the way: there nothing else differs. After the last block only as far as the token's own part of the mean.
#
# In all-MiniLM-L6-v2, for "river" and "city", it is still 0.90 before the last block, and 0.36 after it. So the
# difference stays at the token for five blocks, and the last one hands it to the others. That agrees with step 4: of
# the last block these answers need the heads. How much stays depends on the word: of "good" and "bad" it is 0.64 before
# the last block.


# %%
def shares(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> np.ndarray:
    """How far the patched token goes, before block 0 and after each block."""
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


first, second = (encoder.tokenize(f"The bank of the {word} was muddy.") for word in ("river", "city"))
good, bad = (encoder.tokenize(f"The movie was {word}.") for word in ("good", "bad"))
river_way, good_way = shares(first, second), shares(good, bad)
print("share of the way, patched before block 0 and after each block:")
print(f"river, city  {river_way.round(2)}\ngood, bad    {good_way.round(2)}")
if model.is_minilm:
    assert np.abs(river_way - [1, 0.96, 0.93, 0.93, 0.91, 0.90, 0.36]).max() < 6e-3
    assert abs(good_way[-2] - 0.64) < 6e-3
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
# The small GPT-2 of `007_training.py` knows words, letter by letter. After "wonderfu" it says "l". Before block 0 the
# lens says "u", the letter that is there: the same table stands at the entrance. Block 0 finds the "l" (0.62), the
# other two make it surer (0.81).

# %%
gpt2, ids = study.gpt2_encoder()
shipped = not os.environ.get(study.VARIABLES["gpt2"])
ids = gpt2.tokenize("wonderfu")["input_ids"][0].tolist() if shipped else ids
depth, table = len(gpt2.stack.blocks), gpt2.embeddings.wte.weight
found = gpt2.trace([ids])
lenses = [gpt2["ln_f"](found[f"hidden_states.{i}"][0, -1:])[0] @ table.T for i in range(depth)]
lenses.append(found[f"hidden_states.{depth}"][0, -1] @ table.T)  # which has passed the norm
predicted = int(lenses[-1].argmax())
for i, lens in enumerate(lenses):
    rank = int(np.count_nonzero(lens > lens[predicted])) + 1
    best, token = gpt2.tokens([int(lens.argmax()), predicted])
    chance = softmax(lens.copy())[predicted]
    print(f"after {i} blocks: {token!r} has probability {chance:.3f}, place {rank}; the likeliest is {best!r}")
logits = gpt2.logits([ids], head="next_word")[0, -1]
assert np.abs(lenses[-1] - logits).max() < CLOSE * max(1, np.abs(logits).max())
if shipped:
    chances = [float(softmax(lens.copy())[predicted]) for lens in lenses]
    assert gpt2.tokens([int(lens.argmax()) for lens in lenses]) == ["u", "l", "l", "l"]
    assert np.abs(np.array(chances) - [0.000, 0.625, 0.719, 0.806]).max() < 2e-3
else:
    print("what the text above says is the small GPT-2's; not for this model")

# %% [markdown]
# ## Step 8: the heads that a prediction needs
#
# Each head of GPT-2 is knocked out, and the log of the prediction's probability is looked at again. Below 0: the
# prediction needs the head. Above 0: without the head it is surer.
#
# After "wonderfu" two heads of block 0 are needed, head 0 (-1.19) and head 2 (-0.60); no other moves it by more than
# 0.2. Without both it moves by -4.96, far more than their sum: each can do some of the other's work. That is what one
# word shows: over ten words seven different heads are needed most.


# %%
def log_probability(ids: list[int], predicted: int, change: dict | None = None) -> float:
    logits = gpt2.logits([ids], head="next_word", change=change)[0, -1].astype(np.float64)
    return float(logits[predicted] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def moves(ids: list[int], predicted: int) -> np.ndarray:
    """How far each head moves the log probability: (blocks, heads)."""
    knocked = [[minibert.knock_out(gpt2, heads=[(i, j)]) for j in range(gpt2.stack.heads)] for i in range(depth)]
    found = np.array([[log_probability(ids, predicted, change) for change in row] for row in knocked])
    return found - log_probability(ids, predicted)


usually, needed = log_probability(ids, predicted), moves(ids, predicted)
i, head = np.unravel_index(needed.argmin(), needed.shape)
print(f"log probability {usually:.3f}; without one head it moves by\n{needed.round(3)}")
print(f"needed most: head {head} of block {i}")
order = [np.unravel_index(place, needed.shape) for place in np.argsort(needed.ravel())]
together = {}
for count in (1, 2, 4):
    gone = [(int(block), int(head)) for block, head in order[:count]]
    together[count] = log_probability(ids, predicted, minibert.knock_out(gpt2, heads=gone)) - usually
    print(f"without the {count} that are needed most it moves by {together[count]:.3f}")
assert abs(log_probability(ids, predicted, minibert.knock_out(gpt2)) - usually) < CLOSE, "nothing is knocked out"
if shipped:
    words = ("wonderfu", "beautifu", "stati", "questio", "happines", "walkin", "governmen", "importan", "childre", "q")
    most = set()
    for word in words:
        letters = gpt2.tokenize(word)["input_ids"][0].tolist()
        found = moves(letters, int(gpt2.logits([letters], head="next_word")[0, -1].argmax()))
        most.add(tuple(map(int, np.unravel_index(found.argmin(), found.shape))))
    print(f"over {len(words)} words {len(most)} heads are needed most, as (block, head): {sorted(most)}")
    assert len(most) == 7
    assert [tuple(map(int, place)) for place in order[:2]] == [(0, 0), (0, 2)]
    assert np.abs(needed[0, [0, 2]] - [-1.19, -0.60]).max() < 0.01 and np.sort(np.abs(needed).ravel())[-3] < 0.2
    assert abs(together[2] + 4.96) < 0.02
else:
    print("what the text above says is the small GPT-2's; not for this model")
assert needed.shape == (depth, gpt2.stack.heads) and np.isfinite(needed).all() and np.abs(needed).max() > CLOSE

# %% [markdown]
# ## Exercises
#
# 1. All heads of a block are knocked out. What does its attention add to each token?
# 2. Without positions BERT cannot tell who chased whom. Can GPT-2?
# 3. Put the first text's values of *all* tokens into the second, after block `i`. What comes out?

# %% [markdown]
# ## Answers
#
# 1. The bias of its output map, the same for every token: the context is 0, and `0 @ weight^T + bias` is left.

# %%
gone = encoder.trace(**batch, change=minibert.knock_out(encoder, heads=[(0, h) for h in range(heads)]))
output = encoder.stack.blocks[0].attention.output
assert np.abs(gone[output][0] - encoder[output].bias).max() < CLOSE

# %% [markdown]
# 2. Yes: its mask is left. The last token sees all others, and does not know their order at block 0. But a token in the
#    middle sees only those before it, so its vector depends on which they are, and the next block sees that. Without
#    positions *and* mask the order is lost.

# %%
turned = [*ids[-2::-1], ids[-1]]
for mask in (False, True):
    change = minibert.knock_out(gpt2, positions=True, mask=mask)
    apart = np.abs(gpt2([ids], change=change)[0, -1] - gpt2([turned], change=change)[0, -1]).max()
    print(f"without positions{' and mask' if mask else ''}: the last vectors are up to {apart:.1e} apart")
    assert (apart < 1e-3) == mask

# %% [markdown]
# 3. The first text's own vector: between two blocks, the hidden states are all that there is of a text.

# %%
theirs = encoder.trace(**first)
for i in range(blocks + 1):
    found = encoder(**second, change={f"hidden_states.{i}": theirs[f"hidden_states.{i}"]})
    assert np.abs(found - encoder(**first)).max() < CLOSE
