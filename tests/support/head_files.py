"""Reads tests/reference/heads: a `HeadCase` for each tiny model with a head that the reference has written and run."""

from __future__ import annotations

from encoder_files import EncoderCase
from reference_files import REFERENCE

HEADS = REFERENCE / "heads"


class HeadCase(EncoderCase):
    root = HEADS

    @property
    def head(self) -> str:
        return str(self.facts["head"])


HEAD_CASES = tuple(HeadCase(path.parent.name) for path in sorted(HEADS.glob("*/case.json")))
HEAD_CASE = {case.name: case for case in HEAD_CASES}
