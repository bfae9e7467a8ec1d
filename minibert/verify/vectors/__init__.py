"""A verdict on vectors alone, without a trace."""
