#!/usr/bin/env bash
# From nothing to a model that writes: installs what is missing, builds, prepares a text, trains a small LLaMA on it
# and lets it write. `--help` says more.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/quickstart.sh [--text FILE_OR_DIR] [--out DIR] [--minutes N | --steps N] [section.key=value ...]

  --text FILE_OR_DIR  what to learn to write: a text file, a .jsonl file (field "text") or a folder of both;
                      without it, the source files of this repository
  --out DIR           the run's folder; runs/NAME without it, and NAME is the text's, or "quickstart"
  --minutes N         how long to train: ./train --fit chooses a model and its config for this time and machine;
                      without it, configs/quickstart.json
  --steps N           how many steps of that
  section.key=value   any other key of the config (./train --help-config lists them), such as model.hidden_size=256

A folder that holds a finished run is left alone: DIR-2, DIR-3, ... is used. An interrupted run is resumed.
END
}

fail() {
  echo "quickstart.sh: $*" >&2
  exit 1
}

text='' out='' minutes='' overrides=()
while [ $# -gt 0 ]; do
  case $1 in
  -h | --help) usage && exit 0 ;;
  --text | --out | --minutes | --steps)
    [ -n "${2:-}" ] || fail "$1 needs a value; --help says more"
    case $1 in
    --text) text=$2 ;;
    --out) out=$2 ;;
    --minutes) minutes=$2 ;;
    --steps)
      overrides+=("train.steps=$2")
      # The config's share of warm-up, so that few steps are allowed, too.
      [[ ! $2 =~ ^[1-9][0-9]{0,7}$ ]] || overrides+=("optimizer.warmup_steps=$(($2 / 20))")
      ;;
    esac
    shift
    ;;
  *.*=*) overrides+=("$1") ;;
  *) fail "'$1' is neither an option nor section.key=value; --help says more" ;;
  esac
  shift
done

start=$SECONDS
announce() { printf '\n[%s/5] %s\n' "$1" "$2"; }

# Whether there is a driver: its library, or its tool that finds a GPU.
has_gpu() {
  local libraries gpus
  libraries=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null) gpus=$(nvidia-smi -L 2>/dev/null) || true
  [[ $libraries == *libcuda.so.1* || $gpus == GPU* ]]
}

# The source files of this repository, NUL between them.
own_sources() {
  find base data kernels model scripts tests Makefile train.c -type f \
    -regex '.*\.\([ch]\|cuh?\|sh\|py\)\|Makefile' -print0 | LC_ALL=C sort -z
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
  local number=1
  run=$1
  while data=data/$(plain "$run") && [ -e "$run/log.jsonl" ]; do
    ! resumes || return 0
    number=$((number + 1))
    run=$1-$number
  done
}
resumes() {
  [ -e "$run/log.jsonl" ] && ! finished "$run" &&
    [ "$(cat "$data/source.txt" 2>/dev/null)" = "$source_name" ]
}

build() {
  local for_what='for CPU and GPU' arguments=()
  # Code for GPUs takes minutes to build, and nothing could run it.
  has_gpu || { for_what='for the CPU: no NVIDIA driver was found' && arguments=(NVCC=); }
  make -s -j"$(nproc)" ${arguments[@]+"${arguments[@]}"} all || fail 'the build failed as shown above'
  echo "./train and ./prepare are built, $for_what"
}

prepare_text() {
  if resumes; then
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

# Sets `config`: that of --minutes is beside the dataset.
choose_config() {
  config=$data/fit.json
  if ! resumes; then
    rm -f "$config"
    [ -z "$minutes" ] ||
      ./train --fit "$data/tokens" "minutes=$minutes" "$config" ${overrides[@]+"${overrides[@]}"} || exit 1
  fi
  [ -e "$config" ] || config=configs/quickstart.json
}

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
choose_folders "${out:-runs/${name:-text}}"

announce 1 'packages'
# In an archive of `make dist` the programs are files, where make leaves links.
if [ -f train ] && [ ! -L train ]; then
  echo "none: ./train and ./prepare came with their libraries"
  announce 2 'build'
  ./train --version
else
  scripts/install_packages.sh build
  announce 2 'build'
  build
fi

announce 3 'text'
prepare_text

announce 4 "training, into $run (Ctrl-C saves and ends; the same command resumes)"
choose_config
./train "$config" "data.train=$data/tokens/train-*.bin" "data.val=$data/tokens/val-*.bin" "output.dir=$run" \
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
  ./scripts/quickstart.sh --minutes 30 --out runs/longer  train longer, a larger model
  ./train --help                                          everything else; larger models are in configs/
END
