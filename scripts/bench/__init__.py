"""What `scripts/bench` measures: one function a section, each giving rows of the table."""
