#!/usr/bin/env bash
# Includes point down only: a file may know the rooms in its room's line, and no other. And no
# files of a folder call each other in a circle.
# shellcheck disable=SC2016 # the program for awk
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"

# A room is a folder without its subfolders, or a single file, whose own line then counts alone.
# The files of a folder may include each other, since they share headers. After `no` stand headers
# that are refused all the same. A room may have several lines.
export rooms='
base                   |
data/model_folder.h    | base
data/model_folder.c    | data/model_folder.h base
data/tokenizer         | data/model_folder.h base
data/batch.h           |
data/batch.c           | data/batch.h base
data/mixture.h         | base
data/mixture.c         | data/mixture.h base
data                   | data/batch.h data/mixture.h data/tokenizer base
data/chat              | data/tokenizer base
data/tasks             | data/prepare/parquet.h base
data/prepare           | data data/batch.h data/model_folder.h data/chat data/tokenizer base
kernels                | base
kernels/no_cuda.c      | kernels base
kernels/cpu            | kernels base
kernels/cuda           | kernels base
kernels/unfused        | kernels/cuda kernels base
kernels/fused          | kernels/unfused kernels/cuda kernels base
kernels/fused/programs | kernels/fused kernels base
model/config           | kernels/operations.h kernels/formats.h data/batch.h data/mixture.h data/model_folder.h
model/config           | base
model                  | model/config data/batch.h kernels base
model                  | no base/os.h base/file.h <time.h> <sys/time.h> <signal.h>
model                  | no <fcntl.h> <unistd.h> <dirent.h> <sys/stat.h> <sys/mman.h>
model/run/checkpoint   | model model/config data data/batch.h data/mixture.h data/model_folder.h data/tokenizer data/chat base
model/run              | model/run/checkpoint model model/config data data/batch.h data/mixture.h data/chat data/tasks data/tokenizer kernels base
train.c                | model/run model/run/checkpoint model model/config data base
train.c                | data/tokenizer
scripts/peers          | model/run model kernels/cuda base
'

sources() { # every C and CUDA file below this folder, but for tests and what is built
  find . -name '.?*' -prune -o \( -path ./build -o -path ./tests \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print |
    sed 's|^\./||' | LC_ALL=C sort
}

wrong_arrows() { # every include below this folder that no rule allows, as "FILE:LINE: why"
  sources | xargs awk '
    function folder(path) { return sub(/\/[^\/]*$/, "", path) ? path : "" }
    function room_of(path) { return path in may ? path : folder(path) }
    function listed(name, list) { return name != "" && index(list " ", " " name " ") > 0 }
    function wrong(why) { print FILENAME ":" FNR ": " why }
    BEGIN {
      lines = split(ENVIRON["rooms"], line, "\n")
      for (i = 1; i <= lines; i++) {
        if (split(line[i], part, "|") != 2) continue
        gsub(/ /, "", part[1])
        split(part[2], list, " no ")
        may[part[1]] = may[part[1]] " " list[1]
        never[part[1]] = never[part[1]] " " list[2]
      }
    }
    FNR == 1 {
      room = room_of(FILENAME)
      known = room in may
      if (!known) wrong("no rule names a room for this file")
    }
    known && /^[ \t]*#[ \t]*include/ {
      path = $0
      sub(/^[ \t]*#[ \t]*include[ \t]*/, "", path)
      sub(/[ \t]*(\/[\/*].*)?$/, "", path)
      ours = path ~ /^".*"$/
      gsub(/"/, "", path)
      allowed = folder(path) == room || listed(path, may[room]) ||
                (room_of(path) == folder(path) && listed(folder(path), may[room]))
      if (listed(path, never[room]) || (ours && !allowed)) wrong(room " may not include " path)
      if (!ours && path !~ /^</) wrong("an include is a path in quotes or in <>")
    }'
}

arrows=$(wrong_arrows)
check every_include_points_down "$arrows" test -z "$arrows"

# The objects that call each other in a circle inside of a folder, and those between two circles.
# What a file needs and has is in its object: a source that was not built has none.
built=$(dirname "$TRAIN")
circles() {
  sources | sed -nE "s#^(.*)\.(c|cu)\$#$built/\1.o#p" | while read -r object; do
    [ ! -e "$object" ] || echo "$object"
  done | xargs -r nm -AP | awk '
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    { sub(/:$/, "", $1) }
    $3 ~ /^[TDBRV]$/ { has[folder($1), $2] = $1 }
    $3 == "U" { user[++users] = $1; needs[users] = $2 }
    END {
      for (i = 1; i <= users; i++) {
        from = user[i]
        if (!((folder(from), needs[i]) in has)) continue
        to = has[folder(from), needs[i]]
        if (to != from) print from, to
      }
    }' | LC_ALL=C sort -u | tsort 2>&1 >/dev/null | sed -n "s|^tsort: $built/||p"
}

check the_objects_are_built "run make first" test -e "$built/kernels/cpu/muon.o"
called=$(circles)
check no_files_of_a_folder_call_in_a_circle "these do: ${called//$'\n'/ }" test -z "$called"

# ---- The check itself, on a copy: what is planted there must be found, with its file and line.
mkdir "$folder/copy"
sources | xargs cp --parents -t "$folder/copy"
cd "$folder/copy" || exit 1
before=$(wrong_arrows)

found() { # FILE INCLUDE WHY: the lines that come with a file that has this include in its line 2
  local kept=''
  mkdir -p "$(dirname "$1")"
  [ ! -e "$1" ] || kept=$(cat "$1"; echo .)
  printf '// planted\n#include %s\n' "$2" >"$1"
  diff <(echo "$before") <(wrong_arrows) | sed -n 's/^> //p'
  rm "$1"
  [ -z "$kept" ] || printf '%s' "${kept%.}" >"$1"
}

planted() { # FILE INCLUDE: is refused
  local path=${2//\"/} room=$1
  case $1 in
  train.c | data/model_folder.c | kernels/no_cuda.c) ;;
  *) room=$(dirname "$1") ;;
  esac
  local expected="$1:2: $room may not include $path" said
  said=$(found "$1" "$2")
  check "${1}_may_not_include_$path" "it said '$said'" grep -qxF "$expected" <(echo "$said")
}

allowed() { # FILE INCLUDE
  local said
  said=$(found "$1" "$2")
  check "${1}_may_include_${2//\"/}" "it said '$said'" test -z "$said"
}

planted base/planted.h '"data/tokens.h"'
planted base/planted.h '"kernels/ops.h"'
planted data/planted.c '"model/config/config.h"'
planted data/model_folder.c '"data/safetensors.h"'
planted data/tokenizer/planted.c '"data/tokens.h"'
planted data/tokenizer/planted.c '"data/prepare/run.h"'
planted data/planted.c '"data/prepare/run.h"'
planted kernels/planted.h '"kernels/cpu/cpu.h"'
planted kernels/planted.h '"kernels/cuda/gpu.h"'
planted kernels/cpu/planted.c '"kernels/cuda/gpu.h"'
planted kernels/cpu/planted.c '"model/llama.h"'
planted kernels/cuda/planted.cu '"kernels/unfused/unfused.h"'
planted kernels/cuda/planted.cu '"kernels/fused/fused.h"'
planted kernels/unfused/planted.cuh '"kernels/fused/fused.h"'
planted kernels/fused/programs/planted.cu '"kernels/unfused/unfused.h"'
planted kernels/no_cuda.c '"model/run/bench.h"'
planted kernels/no_cuda.c '"kernels/cuda/gpu.h"'
planted model/config/planted.c '"model/llama.h"'
planted model/config/planted.c '"kernels/ops.h"'
planted model/config/planted.c '"data/tokenizer/tokenizer.h"'
planted model/forward.c '"model/run/trainer.h"'
planted model/forward.c '"data/loader.h"'
planted model/planted.c '"kernels/cuda/gpu.h"'
planted model/planted.c '"base/os.h"'
planted model/planted.c '"base/file.h"'
planted model/planted.c '<signal.h>'
planted model/planted.c '<time.h>'
planted model/run/checkpoint/planted.c '"model/run/log.h"'
planted model/run/checkpoint/planted.c '"kernels/ops.h"'
planted model/run/planted.c '"kernels/cuda/trace.h"'
planted train.c '"kernels/ops.h"'
planted train.c '"kernels/fused/fused.h"'
planted kernels/planted.h '"ops.h"'
planted data/planted.c '"tests/support/tiny_run.h"'
planted data/planted.c '"nowhere/planted.h"'
allowed kernels/fused/planted.c '"kernels/unfused/unfused.h"'
allowed kernels/fused/programs/planted.cu '"kernels/fused/define.cuh"'
allowed model/config/planted.c '"kernels/operations.h"'
allowed model/planted.c '<math.h>'
allowed model/run/planted.c '"kernels/gpu.h"'
allowed tests/unit/planted.c '"kernels/fused/fused.h"'

for file in stray.c model/attic/planted.c kernels/cuda/attic/planted.cu scripts/planted.h; do
  said=$(found "$file" '<math.h>')
  check "${file}_is_in_no_room" "it said '$said'" \
    test "$said" = "$file:1: no rule names a room for this file"
done
said=$(found model/planted.c HEADER)
check an_include_by_macro_is_refused "it said '$said'" \
  test "$said" = 'model/planted.c:2: an include is a path in quotes or in <>'

built=built
# Planted: three files of a folder that call in a circle, and two of different folders.
in_a_circle() { # FILE...: planted, each calling the next, the last the first
  local names=("$@") i
  for i in "${!names[@]}"; do
    local next=$(((i + 1) % ${#names[@]}))
    mkdir -p "$built/$(dirname "${names[i]}")" "$(dirname "${names[i]}")"
    printf 'void call_%s(void);\nvoid call_%s(void) {\n  call_%s();\n}\n' "$next" "$i" "$next" \
      >"${names[i]}.c"
    cc -c "${names[i]}.c" -o "$built/${names[i]}.o"
  done
  circles
  for i in "${names[@]}"; do rm "$i.c" "$built/$i.o"; done
}
said=$(in_a_circle kernels/cpu/one kernels/cpu/two kernels/cpu/three | LC_ALL=C sort | tr '\n' ' ')
check a_circle_of_calls_is_found "it said '$said'" \
  test "$said" = 'kernels/cpu/one.o kernels/cpu/three.o kernels/cpu/two.o '
said=$(in_a_circle kernels/cpu/one kernels/cuda/two)
check folders_have_circles_of_their_own "it said '$said'" test -z "$said"
exit "$failed"
