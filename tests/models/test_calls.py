"""How many of the package's functions one short text goes through: a way that gets longer is seen here, not on a clock.

The bounds are for Python 3.11, with some room. Measured: encode 250 calls of 74 functions in 14 files with 164 changes
of file, a call 236, 61, 12 and 158.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from reference_files import REFERENCE

import minibert


class Calls(NamedTuple):
    calls: int
    functions: int
    files: int
    changes_of_file: int


ENCODE = Calls(252, 74, 14, 168)
CALL = Calls(247, 64, 12, 162)


def counted(call: Callable[[], object]) -> Calls:
    """Count what the fourth call goes through: by then all that is kept is there."""
    seen: list[tuple[str, str]] = []

    def count(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and "minibert" in Path(code.co_filename).parts and not code.co_name.startswith("<"):
            seen.append((code.co_filename, f"{code.co_name}:{code.co_firstlineno}"))

    for _ in range(3):
        call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in seen]
    return Calls(len(seen), len(set(seen)), len(set(files)), sum(a != b for a, b in pairwise(files)))


def test_one_short_text_takes_few_calls(minilm: Path) -> None:
    with minibert.load_encoder(minilm, threads=1) as encoder:
        batch = encoder.tokenize(["a text"])
        for use, most in ((lambda: encoder.encode(["a text"]), ENCODE), (lambda: encoder(**batch), CALL)):
            found = counted(use)
            assert all(few <= many for few, many in zip(found, most, strict=True)), (found, most)


def test_what_the_last_call_settled_is_not_kept_too_long() -> None:
    """The same options again: of a length that was set since, of another option, of a closed encoder."""
    encoder = minibert.load_encoder(REFERENCE / "sentences-dense")
    text = "we lived above the clouds"
    whole, short = encoder.encode(text), encoder.encode("we")
    encoder.max_seq_length = 3
    assert np.array_equal(encoder.encode(text), short)
    encoder.max_seq_length = None
    assert np.array_equal(encoder.encode(text), whole)
    assert encoder.encode(text, truncate_dim=2).shape == (2,) and np.array_equal(encoder.encode(text), whole)
    with pytest.raises(ValueError, match="device must be"):
        encoder.encode(text, device="cuda")
    encoder.close()
    with pytest.raises(ValueError, match="this encoder is closed"):
        encoder.encode(text)
