"""The two that are compared: the model as minibert computes it, and whatever the reference is."""
