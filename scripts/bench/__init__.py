"""What `scripts/bench.py` measures: one function a section, each giving rows of the table."""
