"""The exceptions that minibert raises of its own.

    Exception
    └── MinibertError
        ├── CheckpointError      a folder, a file or a tensor is absent, damaged or not what the config says
        ├── UnknownFamilyError   the config names a model_type that has no row in `minibert.FAMILIES`
        ├── HubError             a name could not be resolved or fetched
        └── TokenizerError       there is no tokenizer, it cannot be read, or it refuses a text

Misuse of a function stays builtin: `TypeError` (a float where an id belongs), `IndexError` (an id past the
table), `ValueError` (shapes that disagree, a sequence too long).

Every message says what was expected, what was found, where, and what to do.
"""


class MinibertError(Exception):
    """Root of the tree: `except minibert.MinibertError` catches all that minibert itself raises."""


class CheckpointError(MinibertError):
    """A checkpoint's folder, file or tensor is absent, damaged, or disagrees with its config."""


class UnknownFamilyError(MinibertError):
    """No row of `minibert.FAMILIES` describes this model_type."""


class HubError(MinibertError):
    """A model name could not be resolved or its files could not be fetched."""


class TokenizerError(MinibertError):
    """The tokenizer is absent or unreadable, or the text is not text."""
