#!/usr/bin/env bash
# From nothing to a model that writes: installs what is missing, builds, prepares a text, trains a small LLaMA on it
# and lets it write. `--help` says more.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/quickstart.sh [--text FILE_OR_DIR] [--out DIR] [--steps N] [section.key=value ...]

  --text FILE_OR_DIR  what to learn to write: a text file, a .jsonl file (field "text") or a folder of both;
                      without it, the source files of this repository
  --out DIR           the run's folder; runs/NAME without it, and NAME is the text's, or "quickstart"
  --steps N           how long to train
  section.key=value   any other key of the config (./train --help-config lists them), such as model.hidden_size=256

A folder that holds a finished run is left alone: DIR-2, DIR-3, ... is used. An interrupted run is resumed.
END
}

fail() {
  echo "quickstart.sh: $*" >&2
  exit 1
}

text='' out='' overrides=()
parse_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    --text | --out | --steps)
      if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a value; --help says more"; fi
      case $1 in
      --text) text=$2 ;;
      --out) out=$2 ;;
      --steps)
        overrides+=("train.steps=$2")
        # The config's share of warm-up, so that few steps are allowed, too.
        [[ ! $2 =~ ^[1-9][0-9]{0,7}$ ]] || overrides+=("optimizer.warmup_steps=$(($2 / 20))")
        ;;
      esac
      shift
      ;;
    -*) fail "unknown option '$1'; --help lists them" ;;
    *.*=*) overrides+=("$1") ;;
    *) fail "'$1' is neither an option nor section.key=value; is it meant as --text '$1'?" ;;
    esac
    shift
  done
}

start=$SECONDS
announce() { printf '\n[%s/5] %s\n' "$1" "$2"; }

# Whether there is a driver: its library, or its tool that finds a GPU.
has_gpu() {
  local libraries gpus
  libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null) gpus=$(nvidia-smi -L 2>/dev/null) || true
  [[ $libraries == *libcuda.so.1* || $gpus == GPU* ]]
}

# The source files of this repository, NUL between them; a tarball has no git to ask.
own_sources() {
  if [ -e .git ] && command -v git >/dev/null && git ls-files >/dev/null 2>&1; then
    git ls-files -z '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' Makefile
  else
    find base data model kernels scripts tests train.c Makefile -type f \
      \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' -o -name Makefile \) -print0 |
      LC_ALL=C sort -z
  fi
}

finished() { tail -n 1 "$1/log.jsonl" 2>/dev/null | grep -q '"reason":"done"'; }

# A path's last part in letters that mean nothing in a glob.
plain() {
  local name
  name=$(basename "$1")
  echo "${name//[^A-Za-z0-9._-]/_}"
}

# Chooses the run's folder and the data's: the first of OUT, OUT-2, ... that is free, or that holds an interrupted
# run on the same text, which is then resumed. source.txt beside the dataset says whose it is.
choose_folders() {
  local base=$1 source=$2 number=1
  run=$base
  while :; do
    data=data/$(plain "$run")
    going_on=no
    [ -e "$run/log.jsonl" ] || return 0
    if ! finished "$run" && [ "$(cat "$data/source.txt" 2>/dev/null)" = "$source" ]; then
      going_on=yes
      return 0
    fi
    number=$((number + 1))
    run=$base-$number
  done
}

prepare_text() {
  if [ "$going_on" = yes ]; then
    echo "the run in $run was interrupted: it resumes, with its text as it was prepared in $data"
    return 0
  fi
  if [ -n "$text" ]; then
    ./prepare --force --out "$data/tokens" -- "$text" || exit 1
  else
    echo 'the text: the source files of this repository (--text takes yours)'
    own_sources | xargs -0 -x ./prepare --force --out "$data/tokens" -- || exit 1
  fi
  echo "$source_name" >"$data/source.txt"
}

parse_arguments "$@"
# The user's paths are relative to where the command was called.
if [ -n "$text" ]; then
  [ -e "$text" ] || fail "there is no file or folder '$text'; give --text one that is there"
  text=$(realpath "$text")
fi
[ -z "$out" ] || out=$(realpath -m "$out")
cd "$(dirname "$0")/.."
name=quickstart source_name='the source files of this repository'
if [ -n "$text" ]; then
  name=$(plain "$text")
  name=${name%.*}
  source_name=$text
fi
out=${out#"$PWD"/}
choose_folders "${out:-runs/${name:-text}}" "$source_name"

announce 1 'packages'
scripts/install_packages.sh build

announce 2 'build'
for_what='for CPU and GPU' make_arguments=()
# Code for GPUs takes minutes to build, and nothing could run it.
has_gpu || { for_what='for the CPU: no NVIDIA driver was found' && make_arguments=(NVCC=); }
make -s -j"$(nproc)" ${make_arguments[@]+"${make_arguments[@]}"} all || fail 'the build failed as shown above'
echo "./train and ./prepare are built, $for_what"

announce 3 'text'
prepare_text

announce 4 "training, into $run (Ctrl-C saves and ends; the same command resumes)"
./train configs/quickstart.json "data.train=$data/tokens/train-*.bin" "data.val=$data/tokens/val-*.bin" "output.dir=$run" \
  train.resume=auto ${overrides[@]+"${overrides[@]}"} || exit 1
shown=$(printf '%q' "$run")
if ! finished "$run"; then
  echo "The same command resumes, too. What it writes so far: ./train --generate $shown --prompt ''"
  exit 0
fi

announce 5 'what it writes'
prompt='static int ' begin='static int '
[ -z "$text" ] || prompt=$'\n' begin='Once upon a time'
./train --generate "$run" --prompt "$prompt" --tokens 600 --temperature 0.6
cat <<END

It took $((SECONDS - start)) s in all. To go on from here:
  ./train --generate $shown --prompt '$begin'  let it write
  ./scripts/quickstart.sh --text my.txt                   train on a text of yours
  ./scripts/quickstart.sh --steps 4000 --out runs/longer  train longer
  ./train --help                                          everything else; larger models are in configs/
END
