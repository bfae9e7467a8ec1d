# %% [markdown]
# ## Answers
#
# 1. No. The square of the distance is `a . a + b . b - 2 a . b = 2 - 2 cosine`: the larger the cosine, the smaller the
#    distance.

# %%
all_texts = [text for three in texts.QUESTIONS for text in three]
means = np.stack([encoder(**encoder.tokenize(text))[0].mean(axis=0) for text in all_texts])
means /= np.linalg.norm(means, axis=1, keepdims=True)
distances = np.linalg.norm(means[1:] - means[0], axis=1)
assert np.abs(distances**2 - (2 - 2 * means[1:] @ means[0])).max() < CLOSE
assert np.array_equal(np.argsort(distances), np.argsort(-(means[1:] @ means[0])))

# %% [markdown]
# 2. It moves far: the tokens now look at the padding, and the padding is in the mean. Over the ten sentences the cosine
#    to the right vector is 0.75 to 0.88 in all-MiniLM-L6-v2.

# %%
apart = []
for sentence in texts.SENTENCES:
    batch = encoder.tokenize(sentence)
    padded = np.pad(batch["input_ids"], ((0, 0), (0, 5)))  # 0 is the id of [PAD]
    right, wrong = (rows[0].mean(axis=0) for rows in (encoder(**batch), encoder(padded)))
    apart.append(float(cosine_similarity(right[None], wrong[None])[0, 0]))
print(f"cosine of the vectors with and without the mask: {texts.spread(apart)}")
assert max(apart) < 0.99
assert texts.spread(apart).startswith("0.75 to 0.88,") or not model.is_minilm
