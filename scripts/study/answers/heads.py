# %% [markdown]
# ## Answers
#
# 1. They are computed, but they predict nothing: the model sees the letter, and training never used its answer there.

# %%
seen = encoder.logits(**encoder.tokenize("question"))[0, 1:-1].argmax(axis=-1)
print("".join(encoder.tokens(seen)), "for 'question'")
assert encoder.tokens(seen) != list("question")

# %% [markdown]
# 2. No: each guess sees a mask in the other place. So two likely letters may not fit together. With less to see the
#    guess is often less sure, as it is here for "o"; of ten words that was so in seven.

# %%
two = encoder.fill("quest[MASK][MASK]n", k=1)
print([each[0]["token_str"] for each in two])
assert len(two) == 2 and two[1][0]["score"] < filled[0]["score"]
