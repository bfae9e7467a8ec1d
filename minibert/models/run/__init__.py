"""Run a model: pack texts, cut them into tiles, compute the blocks on threads, record or change intermediates."""
