# %% [markdown]
# ## Answers
#
# 1. The same result: subtracting the mean removes the 5, and dividing by the standard deviation removes the 3. (The
#    last bits differ. `eps` is not multiplied by 3, but that matters only for a nearly constant row.)

# %%
row = x[0, 1].astype(np.float64)
weight, bias = (part.astype(np.float64) for part in (layer.LayerNorm.weight, layer.LayerNorm.bias))
normed = layer_norm(row, weight, bias, eps=layer.LayerNorm.eps)
for changed in (row + 5, 3 * row):
    assert np.allclose(layer_norm(changed, weight, bias, eps=layer.LayerNorm.eps), normed, rtol=0, atol=1e-6)

# %% [markdown]
# 2. Only the position row differs, so the output differs too. The word row and the type row are the same.

# %%
here, there = layer.trace(**batch), layer.trace(**layer.tokenize("Clouds lived above"))
for name in ("word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm"):
    same = np.array_equal(here[f"embeddings.{name}"][0, 5], there[f"embeddings.{name}"][0, 1])
    print(f"{name}: {'the same' if same else 'another row'}")
    assert same == (name in ("word_embeddings", "token_type_embeddings"))

# %% [markdown]
# 3. Yes, for single sentences, even to the bit: `word + type` is the first addition. It would be wrong for pairs: the
#    tokens of the second text need the row of type 1.

# %%
folded = layer.word_embeddings.weight[input_ids] + layer.token_type_embeddings.weight[0]
assert np.array_equal(layer.LayerNorm(folded + position), whole)
pair = layer.tokenize("We lived", "above the clouds")
folded = layer.word_embeddings.weight[pair["input_ids"]] + layer.token_type_embeddings.weight[0]
folded += layer.position_embeddings.weight[: folded.shape[1]]
assert not np.array_equal(layer.LayerNorm(folded), layer(**pair))

# %% [markdown]
# 4. The three tables and LayerNorm's two rows. In bert-base-uncased these are 23,837,184 numbers, and 98.3 % of them
#    are in the word table; all-MiniLM-L6-v2, half as wide, has 11,918,592, with the same share.

# %%
sizes = [table.size for table in (*tables, norm.weight, norm.bias)]
print(f"{model.name}: {sum(sizes):,} numbers, {sizes[0] / sum(sizes):.1%} of them in the word table")
rows = sum(len(table) for table in tables) + 2
assert sum(sizes) == rows * layer.config.hidden_size
if rows == 30522 + 2 + 512 + 2:
    assert (rows * 768, rows * 384) == (23_837_184, 11_918_592) and round(30522 / rows, 3) == 0.983
