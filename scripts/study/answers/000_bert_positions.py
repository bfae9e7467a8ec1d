# %% [markdown]
# ## Answers
#
# 1. For nearly all: for 511 of 512 in all-MiniLM-L6-v2 (not for row 0), for 473 in bert-base-uncased. Most of
#    bert-base-uncased's exceptions are after position 340: long texts are rare in training, so these rows were used
#    least.

# %%
nearest = (similarity - 2 * np.eye(len(table))).argmax(axis=1)  # a row is not its own neighbour
beside = np.abs(nearest - np.arange(len(table))) == 1
print(f"{model.name}: a neighbour is the most similar row for {beside.sum()} of {len(table)} positions")
assert not beside[0] and beside.mean() > 0.9
if model.is_minilm:
    assert beside.sum() == 511
if model.is_bert_base:
    assert beside.sum() == 473 and np.mean(np.flatnonzero(~beside) >= 340) > 0.8

# %% [markdown]
# 2. No, neither. A mean does not depend on the order of its terms. The word rows are the same rows, and the position
#    rows are the same rows too: both means are equal, except for the last bits. Order shows only after a step that is
#    not a sum. LayerNorm is not a sum: after it the two means differ, in all-MiniLM-L6-v2 by up to 0.006. The step that
#    matters is attention.

# %%
dog, man = (layer.trace(**layer.tokenize(text)) for text in ("dog bites man", "man bites dog"))
for name in ("embeddings.word_embeddings", "sum"):
    apart = np.abs(dog[name].mean(axis=1) - man[name].mean(axis=1)).max()
    print(f"means of {name}: {apart:.1e} apart")
    assert apart < 1e-6
assert np.abs(dog["sum"] - man["sum"]).max() > 0.01, "token by token they differ"
name = "embeddings.LayerNorm"
apart = np.abs(dog[name].mean(axis=1) - man[name].mean(axis=1)).max()
print(f"means of {name}: {apart:.4f} apart")
assert apart > 1e-5
if model.is_minilm:
    assert round(float(apart), 3) == 0.006
