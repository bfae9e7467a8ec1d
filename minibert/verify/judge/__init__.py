"""How two traces are compared, and which of the mistakes explains a difference."""
