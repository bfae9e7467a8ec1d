# %% [markdown]
# ## Answers
#
# 1. One: it always writes the likeliest letter, so the seed changes nothing.

# %%
always = set(made_up(5, temperature=0))
print(always)
assert len(always) == 1
