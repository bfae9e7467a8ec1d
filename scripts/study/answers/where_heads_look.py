# %% [markdown]
# ## Answers
#
# 1. BERT's does not. If the rows that enter come in another order, the same rows leave, in that order. So in BERT the
#    order is in the rows, by the position table, or it is nowhere. GPT-2 is another case: its causal mask lets a token
#    use only those before it. So the last token's context stays the same, whatever the order of the others, but theirs
#    change, and the next block sees that.

# %%
attention = minibert.equations.attention
part = "encoder.layer.0.attention.self"
q, k, v = (traces[0][f"{part}.{name}"][0, :, 5 * head_dim : 6 * head_dim] for name in ("query", "key", "value"))
context, seq = attention(q, k, v), len(q)
shuffled = np.random.default_rng(0).permutation(seq)
assert np.abs(attention(q[shuffled], k[shuffled], v[shuffled]) - context[shuffled]).max() < CLOSE
causal = additive_mask(np.tri(seq, dtype=bool))
ordered, mixed = attention(q, k, v, causal), attention(q[shuffled], k[shuffled], v[shuffled], causal)
apart = np.abs(mixed - ordered[shuffled]).max()
print(f"with a causal mask the same tokens in another order get contexts up to {apart:.1f} apart")
assert apart > 1000 * CLOSE
others_swapped = np.array([1, 0, *range(2, seq)])
swapped = attention(q[others_swapped], k[others_swapped], v[others_swapped], causal)
assert np.abs(swapped[2:] - ordered[2:]).max() < CLOSE
assert np.abs(swapped[0] - ordered[1]).max() > 1000 * CLOSE
