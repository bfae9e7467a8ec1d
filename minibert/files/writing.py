"""minibert writes every file this way: it appears complete or not at all (an atomic write).

`write_output` is for a path that a user has named: links are followed, and pipes and devices are written to directly.
`atomic_write` is for a name in a folder of our own: no link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from .reading import FileName, model_file

Content = Any  # whatever gives its bytes: bytes, a memoryview, an array in C order; or an iterator of such

STDOUT = 1  # its file descriptor
KEPT = 50  # letters of a file's name that its temporary name shows; a name has at most 255 bytes


def output_ending(path: FileName, endings: Sequence[str]) -> str:
    """Say in which format to write `path`, by its ending; a pipe or device without one gets the first.

    Meant to be called before anything is computed. Raises ValueError for another ending, IsADirectoryError for a
    folder, FileNotFoundError where the folder to write in is absent.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write, in it or elsewhere")
    if ending not in endings:
        if _straight(path):
            return endings[0]
        raise ValueError(f"{path}: the file must end in {' or '.join(endings)}, found {ending or 'no ending'!r}")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it first")
    return ending


def write_output(path: FileName, *pieces: Content) -> None:
    """Write pieces of bytes, one after another, to a path that a user has named; see `atomic_write`.

    A symbolic link stays, and the file that it leads to is written. An existing file keeps its mode. A pipe or a
    device, such as stdout, is written to directly.

    Raises ValueError for a file of a model that was opened here, OSError that names `path`: a folder, a full disk, no
    permission.
    """
    path = Path(path)
    refuse_model_file(path)
    with naming(path):
        if _straight(path):
            # another opening of stdout would begin at its first byte, and cut what `>>` is to be added to
            with open(os.dup(STDOUT) if is_stdout(path) else path, "wb") as file:
                file.writelines(_each(pieces))
        else:
            mode = None
            with suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.stat().st_mode)
            atomic_write(os.path.realpath(path), *pieces, mode=mode)


def atomic_write(path: FileName, *pieces: Content, mode: int | None = None) -> None:
    """Write a file under a temporary name beside `path`, then move it there: a reader sees all or nothing.

    A link at `path` is replaced, not followed. After any error, Ctrl-C too, no temporary file is left. mode: of the new
    file, from its first moment; None leaves it to the umask.

    Raises ValueError for a file of a model that was opened here, OSError that names `path`.
    """
    with atomic_file(path, mode) as file:
        file.writelines(_each(pieces))


@contextmanager
def atomic_file(path: FileName, mode: int | None = None, lasting: bool = False) -> Iterator[BinaryIO]:
    """Open a file for a function that writes by itself; see `atomic_write`. It gets its name at the end of the context.

    lasting: the disk has it all before it gets its name, and then the name, so that it is whole and there after a power
    cut too.
    """
    path = Path(path)
    refuse_model_file(path)
    # of two threads that write one path each has its own, and the last one to end wins
    temporary = path.parent / f".{path.name[:KEPT]}.{os.urandom(8).hex()}"
    opener = partial(os.open, mode=0o666 if mode is None else mode)
    with naming(path):
        try:
            with open(temporary, "xb", opener=opener) as file:
                if mode is not None and stat.S_IMODE(os.fstat(file.fileno()).st_mode) != mode:
                    temporary.chmod(mode)  # what the umask took away
                yield file
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if lasting:
                sync_folder(path.parent)  # now the name is on the disk too
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def sync_folder(path: FileName) -> None:
    """Wait until the names in a folder are on the disk."""
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
        folder = os.open(path, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def same_file(a: FileName, b: FileName) -> bool:
    """Whether two names lead to one file that is there, through links of either kind too."""
    try:
        return Path(a).samefile(b)
    except OSError:
        return False


def refuse_model_file(path: FileName) -> None:
    """Refuse to write over a file of a model that was opened here: every writer asks this. Raises ValueError."""
    if (source := model_file(path)) is not None:
        raise ValueError(
            f"{path} is {source}, a file of the model that is read here, and would be lost; choose another name"
        )


def is_stdout(path: FileName) -> bool:
    """Whether a name leads to what stdout is: /dev/stdout, or the file that a shell has sent it to."""
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(STDOUT))
    except OSError:  # no such file; stdout is closed
        return False


@contextmanager
def naming(path: FileName) -> Iterator[None]:
    """Make a disk error name the requested file, not the temporary one beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from None


def _each(pieces: Iterable[Content]) -> Iterator[Content]:
    for piece in pieces:
        yield from piece if isinstance(piece, Iterator) else (piece,)


def _straight(path: Path) -> bool:
    """Whether there is something at `path` that cannot be moved away and replaced."""
    return path.exists() and (not path.is_file() or is_stdout(path))
