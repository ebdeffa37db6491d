# shellcheck shell=bash disable=SC2034 # a test that sources this ends with "exit $failed"
# The tests of ./prepare source this: token files as text, and what is refused.
# shellcheck source=tests/support/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source=$PWD prepare=$PREPARE
cd "$folder" || exit 1
export LC_ALL=C

# ids FILE: the token ids, one a line.
ids() { tail -c +1025 "$1" | od -An -v -tu2 -w2 | tr -d ' '; }
# documents FILE...: the text with each document as [text], all files in a row.
documents() {
  for file in "$@"; do ids "$file"; done |
    awk '{ if ($1 == 256) printf "["; else if ($1 == 257) printf "]"; else printf "%c", $1 }'
}

# holds NAME EXPECTED FILE...: the documents of the files are exactly these.
holds() {
  local found
  found=$(documents "${@:3}")
  check "$1" "expected $2, found ${found:0:300}" test "$found" = "$2"
}

# refuses NAME EXPECTED_WORDS ARGUMENTS... Progress is shown after a second.
refuses() {
  local name=$1 words=$2
  shift 2
  "$prepare" --out refused/out "$@" >stdout 2>stderr
  local status=$?
  if [ $status != 1 ]; then fails "$name" "exit status $status instead of 1"
  elif [ "$(grep -cv '^ *[0-9]* %, ' stderr)" != 1 ]; then fails "$name" "$(wc -l <stderr) lines on standard error"
  elif ! grep -qF -- "$words" stderr; then fails "$name" "said: $(cat stderr)"
  elif [ -s stdout ]; then fails "$name" "printed: $(cat stdout)"
  elif [ -e refused ]; then fails "$name" "left $(find refused | tr '\n' ' ')"
  else passes "$name"; fi
}

runs() { # runs ARGUMENTS...
  "$prepare" "$@" >stdout 2>stderr || { echo "# prepare $*: $(cat stderr)"; return 1; }
}
