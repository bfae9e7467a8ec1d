# %% [markdown]
# ## Answers
#
# 1. BERT does not. If the rows enter in another order, the same rows leave, in that order. So BERT knows the order only
#    from the position rows. GPT-2 is different: its causal mask lets a token use only itself and earlier tokens. So the
#    last token's context is the same for any order of the earlier tokens, but their contexts change, and the next block
#    sees that.

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
