"""The judge compares two traces, and finds the mistake that explains a difference."""
