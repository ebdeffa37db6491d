# shellcheck shell=bash disable=SC2034 # its users read what it sets
# What the parts of a night share. A part is called as PART SECONDS, ends with `finish`, and goes on with random things
# until its time is over or something fails.
# shellcheck source=tests/support/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
ends=$((SECONDS + ${1:-20}))
# bash's own generator: the same choices each time for one seed, as far as the clock allows
seed=${NIGHT_SEED:-20240520}
RANDOM=$seed
evidence=$PWD/${NIGHT_EVIDENCE:-build/night/evidence}
part=$(basename "$0" .sh)
problem=''
declare -A counted

time_left() { [ $SECONDS -lt $ends ] && [ -z "$problem" ]; }
count() { counted[$1]=$((${counted[$1]:-0} + 1)); }
pick() { # of the arguments one
  local choices=("$@")
  echo "${choices[RANDOM % $#]}"
}
milliseconds() { printf '0.%03d' $((RANDOM % $1)); }

# fault WHY FOLDER: the part ends here; what was found is kept.
fault() {
  local kept=$evidence/$part-$seed
  problem=$1
  rm -rf "$kept" && mkdir -p "$kept"
  cp -r "$2/." "$folder/said" "$folder/said.err" "$kept/" 2>/dev/null
  echo "$problem" >"$kept/why"
  problem+="; kept in $kept"
}

# finish NAME: what was counted, one line each, and whether all went well.
finish() {
  local what
  for what in "${!counted[@]}"; do echo "# counted $what: ${counted[$what]}"; done | LC_ALL=C sort
  check "$1" "$problem (NIGHT_SEED=$seed)" test -z "$problem"
}

# What must be there whenever a run was interrupted: `latest` is a whole checkpoint. Only the very first save may leave its
# folder named and the link not there yet; resuming finds that folder by itself.
latest_is_whole() {
  local file saved
  mapfile -t saved < <(compgen -G "$1/step-????????")
  if [ ! -L "$1/latest" ]; then
    [ ${#saved[@]} -le 1 ]
    return
  fi
  for file in config.json optimizer.safetensors run.json state.json; do
    [ -s "$1/latest/$file" ] || return 1
  done
  [ -s "$1/latest/model.safetensors" ] || [ -s "$1/latest/model.safetensors.index.json" ]
}

# same_end A B: two runs ended with equal bits and the same losses. Prints what differs.
same_end() {
  same_bits "$1" "$2" 2>&1 || return
  diff <(losses train "$1/log.jsonl") <(losses train "$2/log.jsonl") | head -n 4
  [ "${PIPESTATUS[0]}" = 0 ]
}
