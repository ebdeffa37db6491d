#!/usr/bin/env bash
# How long recipes need to reach a loss: trains each over several seeds, prints them side by side. `--help` says more.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/time_to_loss.sh RECIPES OUT [options] [section.key=value ...]

RECIPES is small (ten minutes a run on two cores), 110m, 350m, or a file like scripts/recipes/small.txt:

  all CONFIG.json section.key=value ...    what every run has
  NAME section.key=value ...               a recipe; the first one is what the others are compared with
  NAME peer=compile+amp ...                the same in PyTorch (scripts/peers/torch_llama.py --help)

A recipe whose horizon differs has a train.steps of its own. Everything goes into OUT:

  NAME/seed-S/log.jsonl    the runs; one that is done is not run again
  table.md                 the table that is printed
  loss.png                 validation loss over seconds (needs matplotlib)

  --data FOLDER    token files of ./prepare. Without it they are made in OUT/data, of the model's vocabulary
  --text TEXT      what ./prepare takes; without it scripts/fetch_text.sh fetches OUT/text
  --seeds 'S ...'  of weights and order ('1 2 3')
  --only 'NAME ...'  these recipes; the first is then the first of these
  --target LOSS    validation loss to reach; without it, what the first recipe ends with
  --peer           the recipes with peer=, too; PYTHON (python3) has torch 2.9 or later
  section.key=value  for every run, over what the file says

Seconds are those of training steps: no validation, no start; the first step, in which a peer compiles, counts as
the median one. A validation reads the same tokens in all runs. Losses at each validation are averaged over seeds,
and a line between two of them says when the mean first reaches the target; +- of it is the standard error of the
mean loss there over the line's slope, +- of a loss its standard error over seeds.
END
}

fail() {
  echo "time_to_loss.sh: $*" >&2
  exit 1
}

recipes='' out='' data='' text='' seeds='1 2 3' only='' target='' peer='' overrides=()
parse_arguments() {
  while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    --peer) peer=yes ;;
    --data | --text | --seeds | --only | --target)
      if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a value; --help says more"; fi
      declare -g "${1#--}=$2"
      shift
      ;;
    -*) fail "unknown option '$1'; --help lists them" ;;
    *.*=*) overrides+=("$1") ;;
    *)
      if [ -z "$recipes" ]; then recipes=$1
      elif [ -z "$out" ]; then out=$1
      else fail "'$1' is neither an option nor section.key=value"; fi
      ;;
    esac
    shift
  done
  [ -n "$out" ] || fail "which recipes, and where to? usage: scripts/time_to_loss.sh RECIPES OUT"
  [[ $seeds =~ ^\ *[0-9][0-9\ ]*$ ]] || fail "--seeds '$seeds': whole numbers with spaces between them"
  [[ -z $target || $target =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "--target '$target': a loss, such as 3.2"
}

# Sets `names`, `settings` by name, `peers` by name, and `common`.
declare -A settings peers
names=() common=()
read_recipes() {
  local line number=0 words name word
  while read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    read -ra words <<<"${line%%#*}"
    [ ${#words[@]} -gt 0 ] || continue
    name=${words[0]}
    [[ $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] ||
      fail "$recipes:$number: '$name' is no name for a recipe; take letters, digits, '.', '-' and '_'"
    for word in "${words[@]:1}"; do
      [[ $word == *.*=* || $word == peer=* || ($name == all && $word == *.json) ]] ||
        fail "$recipes:$number: '$word' is not section.key=value"
    done
    if [ "$name" = all ]; then common=("${words[@]:1}") && continue; fi
    [ -z "${settings[$name]+there}" ] || fail "$recipes:$number: there are two recipes '$name'"
    peers[$name]='' settings[$name]=''
    for word in "${words[@]:1}"; do
      case $word in
      peer=*) peers[$name]=${word#peer=} ;;
      *) settings[$name]+=" $word" ;;
      esac
    done
    names+=("$name")
  done <"$recipes"
  [[ ${common[0]:-} == *.json ]] || fail "$recipes: there is no line 'all CONFIG.json ...'"
  [ -e "${common[0]}" ] || fail "$recipes: there is no config '${common[0]}'"
}

choose_recipes() {
  local name chosen=()
  for name in ${only:-${names[*]}}; do
    [ -n "${settings[$name]+there}" ] || fail "there is no recipe '$name' in $recipes; it has ${names[*]}"
    [ -z "${peers[$name]}" ] || [ -n "$peer" ] || continue
    chosen+=("$name")
  done
  [ ${#chosen[@]} -gt 0 ] || fail "no recipe is left of $recipes; those with peer= need --peer"
  names=("${chosen[@]}")
}

# What ./train would refuse is said before the first run, not hours later.
check_recipes() {
  local name said
  for name in "${names[@]}"; do
    # shellcheck disable=SC2086 # a recipe's words have no spaces
    said=$(./train --plan "${common[@]}" ${settings[$name]} ${overrides[@]+"${overrides[@]}"} 2>&1 >/dev/null) ||
      fail "recipe $name: $said"
  done
}

has_tokens() { compgen -G "$1/train-*.bin" >/dev/null && compgen -G "$1/val-*.bin" >/dev/null; }

make_data() {
  local vocabulary plan
  if [ -n "$data" ]; then
    has_tokens "$data" || fail "'$data' has no train-*.bin or no val-*.bin; ./prepare --out FOLDER makes them"
    return 0
  fi
  data=$out/data
  [ ! -e "$data/train-00000.bin" ] || return 0
  if [ -z "$text" ]; then
    text=$out/text/text.jsonl.zst
    [ -e "$text" ] || scripts/fetch_text.sh "$out/text"
  fi
  [ -e "$text" ] || fail "there is no text '$text'"
  plan=$(./train --plan "${common[@]}" ${overrides[@]+"${overrides[@]}"}) || exit 1
  vocabulary=$(sed -nE 's/.*"vocab_size": *([0-9]+).*/\1/p' <<<"$plan")
  [ -e "$out/tok/tokenizer.json" ] || ./prepare --train-tokenizer "$vocabulary" --out "$out/tok" "$text"
  ./prepare --tokenizer "$out/tok" --val-fraction 0.02 --out "$data" "$text"
}

# run NAME SEED: once; what it says is in said.txt. Half a run is worth nothing, since its time is: it starts over.
run() {
  local folder=$out/$1/seed-$2 command last
  command=(./train)
  [ -z "${peers[$1]}" ] || command=("${PYTHON:-python3}" scripts/peers/torch_llama.py "${peers[$1]}")
  # shellcheck disable=SC2206 # a recipe's words have no spaces
  command+=("${common[@]}" "data.train=$data/train-*.bin" "data.val=$data/val-*.bin" train.save_interval=-1
    train.sample_interval=-1 ${settings[$1]} ${overrides[@]+"${overrides[@]}"} "train.seed=$2" "output.dir=$folder")
  if [ -e "$folder/done" ]; then
    [ "${command[*]}" = "$(cat "$folder/done")" ] ||
      fail "$folder was run with other settings: $(cat "$folder/done"); remove it, or give another OUT"
    return 0
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  printf '%s, seed %s: ' "$1" "$2"
  if "${command[@]}" >"$folder/said.txt" 2>&1 && last=$(tail -n 1 "$folder/log.jsonl") && [[ $last == *'"done"'* ]]; then
    echo "${command[*]}" >"$folder/done"
    grep -oE 'validation loss [0-9.]+' "$folder/said.txt" | tail -n 1
  else
    echo 'failed'
    echo "time_to_loss.sh: $1, seed $2 did not run to its end: $(tail -n 1 "$folder/said.txt")" >&2
    return 1
  fi
}

parse_arguments "$@"
# The user's paths are relative to where the command was called.
[ ! -f "$recipes" ] || recipes=$(realpath "$recipes")
out=$(realpath -m "$out") data=${data:+$(realpath -m "$data")} text=${text:+$(realpath -m "$text")}
cd "$(dirname "$0")/.."
out=${out#"$PWD/"}
if [ ! -f "$recipes" ]; then
  shipped=scripts/recipes/$recipes.txt
  [ -f "$shipped" ] || fail "there is no file '$recipes'; shipped are $(basename -s .txt scripts/recipes/*.txt | xargs)"
  recipes=$shipped
fi
for program in ./train ./prepare; do
  [ -x $program ] || fail "there is no program '$program'; build it: make all"
done
command -v python3 >/dev/null || fail 'there is no python3, which reads the logs; install it'
read_recipes
choose_recipes
check_recipes
mkdir -p "$out"
make_data
export OMP_WAIT_POLICY=passive # train would start itself over to set it
status=0
for seed in $seeds; do
  for name in "${names[@]}"; do run "$name" "$seed" || status=1; done
done
# shellcheck disable=SC2086 # several
scripts/time_to_loss.py "$out" --seeds $seeds ${target:+--target "$target"} --recipes "${names[@]}" || status=1
exit $status
