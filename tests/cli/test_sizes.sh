#!/usr/bin/env bash
# How long files, functions and lines may be, and how much of the whole there may be.
# shellcheck disable=SC2016 # the programs for awk
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
export LC_ALL=C

# What is longer for a good reason: "file", "function" or "line", its path, the reason.
exceptions='
'

tree() { # the files below this folder that end in one of these
  local ending name=()
  for ending in "$@"; do name+=(-o -name "*$ending"); done
  find . -name '.?*' -prune -o \( -path ./build -o -path ./runs \) -prune -o \
    -type f \( "${name[@]:1}" \) -print | sed 's|^\./||' | sort
}
code() { tree .c .h .cu .cuh .cpp; }
product() { tree .c .h .cu .cuh | grep -v '^tests/'; }
makefiles() { tree Makefile .mk; }

# The next four read names of files. Three print "NUMBER PATH..." for each thing that they measure.
file_lengths() { xargs awk '{ n[FILENAME] = FNR } END { for (f in n) print n[f], f }' | sort -k 2; }

# Bytes that only go on with a character are left out, and so are the rows of Markdown's tables.
line_lengths() {
  xargs awk '
    FILENAME ~ /\.md$/ && /^ *\|/ { next }
    { gsub(/[\200-\277]/, ""); print length($0), FILENAME ":" FNR }'
}

# From the line that ends with the opening brace to the closing one. clang-format ends the first
# with ") {", and puts the second below the function's first letter, which a struct indents.
function_lengths() {
  xargs awk '
    FNR == 1 { inside = structure = 0; head = "" }
    inside {
      if ($0 == end) { print FNR - start + 1, FILENAME, name; inside = 0 }
      next
    }
    /^}/ { structure = 0 }
    /^[a-z]+:$/ { next } # private:
    head != "" { head = head $0 }
    /^[^ \t#\/}]/ {
      head = $0
      structure = /\{$/ && !/\) (const )?\{$/
    }
    structure && /^  [^ \t#\/}]/ { head = $0 }
    /\) (const )?\{$/ && head != "" {
      name = head
      gsub(/__launch_bounds__\([^()]*\)/, "", name)
      sub(/\(.*/, "", name)
      sub(/.*[ *&]/, "", name)
      end = head ~ /^ / ? "  }" : "}"
      start = FNR
      inside = 1
    }'
}

# How many lines are not blank and hold more than a comment.
lines_of_code() {
  xargs awk '
    FNR == 1 { comment = 0 }
    { gsub(/^[ \t]+|[ \t\r]+$/, "") }
    comment {
      if (!(at = index($0, "*/"))) next
      comment = 0
      $0 = substr($0, at + 2)
    }
    /^$/ || /^\/\// { next }
    /^\/\*/ && !/\*\// { comment = 1; next }
    /^\/\*.*\*\/$/ { next }
    { n++ }
    END { print n + 0 }'
}

above() { # WHAT LIMIT: of the lines "NUMBER PATH...", those above the limit that are no exception
  local number path name
  while read -r number path name; do
    grep -q "^$1 ${path%%:*} " <<<"$exceptions" || echo "$path${name:+ $name} has $number"
  done < <(awk -v limit="$2" '$1 > limit')
}
long_files() { code | file_lengths | above file 450; }
long_functions() { code | function_lengths | above 'function' 60; }
long_lines() {
  { code && makefiles && tree .md; } | line_lengths | above line 100
  # In scripts a command and its words may stand on one line.
  tree .sh .py | line_lengths | above line 145
}

none() { # NAME FOUND
  check "$1" "$(wc -l <<<"$2"): $(head -n 12 <<<"$2")" test -z "$2"
}
at_most() { # NAME LIMIT NUMBER
  check "$1" "there are $3, and $2 are allowed" test "$3" -le "$2"
}
none no_file_of_code_has_more_than_450_lines "$(long_files)"
none no_function_has_more_than_60_lines "$(long_functions)"
none no_line_has_more_than_100_columns "$(long_lines)"
at_most the_readme_has_at_most_130_lines 130 "$(wc -l <README.md)"
at_most makefiles_have_at_most_262_lines 262 "$(makefiles | xargs cat | wc -l)"
at_most pictures_have_at_most_1500_lines 1500 "$(tree .svg | xargs cat | wc -l)"
# 14,346 before tokenizers, corpora, evaluation and Hugging Face folders came, 20,979 before FP8,
# 23,720 before runs were made to survive; now this only sees to it that there is no more.
at_most there_is_no_more_code_than_there_was 27900 "$(product | lines_of_code)"

# ---- The rulers themselves, on what is planted in an empty folder
mkdir "$folder/planted" && cd "$folder/planted" || exit 1
finds() { # NAME EXPECTED FOUND
  check "$1" "it said '$3' instead of '$2'" test "$3" = "$2"
}
repeat() { for _ in $(seq "$1"); do echo "$2"; done; }

repeat 450 '// a comment' >fits.c
repeat 451 'int x;' >long.cuh
finds a_file_of_451_lines_is_found 'long.cuh has 451' "$(long_files)"

{
  echo 'static int fits(int a,' && echo '                int b) {' && repeat 58 '  a += b;' && echo '}'
  echo '__global__ void __launch_bounds__(64)' && echo '    long_one(void) {'
  repeat 59 '  f();' && echo '}'
} >functions.cu
{
  echo 'template <int N>' && echo 'struct Pairs {' && echo '  int member;'
  echo 'private:'
  echo '  __device__ void fits(int a) {' && repeat 58 '    if (a) {' && echo '  }'
  echo '  __device__ int long_member(int a) const {' && repeat 59 '    f();' && echo '  }'
  echo '};' && echo 'void after(void) {' && repeat 59 '  f();' && echo '}'
} >members.cuh
finds functions_of_61_lines_are_found 'functions.cu long_one has 61
members.cuh long_member has 61
members.cuh after has 61' "$(long_functions)"

hundred=$(printf 'x%.0s' {1..100})
printf '%s\n' "$hundred" "${hundred}x" >wide.c
printf '%s\n' "${hundred%xx}½½" "| ${hundred} |" "${hundred}½" >wide.md
printf '\t%s\n' "$hundred" >wide.mk
printf '%s\n' "${hundred}" >wide.sh
finds lines_of_101_columns_are_found 'wide.c:2 has 101
wide.mk:1 has 101
wide.md:3 has 101' "$(long_lines)"
exceptions='
line wide.c it shows an exception'
finds an_exception_is_left_out 'wide.mk:1 has 101
wide.md:3 has 101' "$(long_lines)"

rm ./*
mkdir tests && echo 'int not_counted;' >tests/test.c
cat >count.c <<'END'
// a comment

/* another
   of several lines */
int x; // counted
/* before */ int y;
  /* alone */
/*
*/ int z;
END
finds lines_of_code_are_counted 3 "$(product | lines_of_code)"
exit "$failed"
