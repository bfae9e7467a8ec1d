# %% [markdown]
# ## Answers
#
# 1. The three tables and LayerNorm's two rows. In bert-base-uncased these are 23,837,184 numbers, and 98.3 % of them
#    are in the word table; in all-MiniLM-L6-v2, half as wide, 11,918,592, and the share is the same.

# %%
sizes = [table.size for table in (*tables, norm.weight, norm.bias)]
print(f"{model.name}: {sum(sizes):,} numbers, {sizes[0] / sum(sizes):.1%} of them in the word table")
rows = sum(len(table) for table in tables) + 2
assert sum(sizes) == rows * dim
if rows == 30522 + 2 + 512 + 2:
    assert (rows * 768, rows * 384) == (23_837_184, 11_918_592) and round(30522 / rows, 3) == 0.983

# %% [markdown]
# 2. Each `[SEP]` has the type of the text that it ends: the first one is of type 0, the last one of type 1.

# %%
pair = layer.tokenize("I am Sinan", "Who are you")
ends = np.flatnonzero(pair["input_ids"][0] == input_ids[0, -1])
print(list(zip(layer.tokens(pair["input_ids"][0]), pair["token_type_ids"][0].tolist(), strict=True)))
assert pair["token_type_ids"][0, ends].tolist() == [0, 1]

# %% [markdown]
# 3. No, and no. `[PAD]` has a row like any token, and it is not zero in a trained file. Each row of the result
#    depends on its own token only, so padding on the right changes nothing for the others. Attention must be told to
#    skip it: that is what the mask is for.

# %%
both = layer.tokenize(["I am Sinan", "I am"])
padded = layer(**both)
hidden = both["attention_mask"] == 0
assert hidden.any() and np.all(np.any(padded[hidden] != 0, axis=-1))
alone = layer(**layer.tokenize("I am"))
assert np.array_equal(padded[1, : alone.shape[1]], alone[0])
