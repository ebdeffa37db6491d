# shellcheck shell=bash
# Scripts that time training source this, in the repository's folder: looks for the programs, and makes token files of this
# repository's sources, $folder/tokens/train-*.bin, below a temporary folder that goes. FOLDER: where that is made.
for program in ./train ./prepare; do
  [ -x $program ] || { echo "$(basename "$0"): there is no program '$program'; build it: make all" >&2 && exit 1; }
done
folder=$(mktemp -d -p "${FOLDER:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$folder"' EXIT
find base data model kernels scripts -type f -name '*.[ch]' -print0 | xargs -0 cat >"$folder/sources.txt"
for _ in $(seq 8); do cat "$folder/sources.txt"; done >"$folder/text.txt"
./prepare --out "$folder/tokens" "$folder/text.txt" >/dev/null
