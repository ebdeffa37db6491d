#!/usr/bin/env bash
# Every command of every page works: each line of each ```sh block is run, from the top of the page to its end, in a
# fresh copy of the tree. A new page or block is run as well. What a reader brings, and what would need the network or a
# GPU, has a stand-in; a command that cannot run here is in the table below with its reason.
# usage: tests/cli/test_page_commands.sh [PAGE.md ...]
# shellcheck disable=SC2016,SC2317 # Markdown's backticks; functions that a table names
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
root=$PWD

# What readers bring: page | names | what they are. `bring` makes them.
brought='
configs/FINETUNE.md   | models/Llama-3.2-1B talks.jsonl | a model from Hugging Face, conversations
configs/README.md     | models/Llama-3.2-1B FOLDER my_texts tinyshakespeare.txt | models and texts from elsewhere
data/README.md        | my_texts more.txt.gz more.jsonl talks.jsonl big.txt.xz web/a.parquet | the texts of a reader
data/README.md        | llama-3.2-1b run runs/llama-1m | models of a reader
scripts/README.md     | runs/a runs/b | two runs of a reader
scripts/CONTAINERS.md | data/mine | a dataset of a reader
scripts/ELSEWHERE.md  | runs/mine data/mine models/more | a run, its dataset, and what two GPUs made of it
'
# Programs that `set_up` writes in the place of others:
#   make                | make -n: the tests have built everything; build/... is built
#   train               | four steps of one narrow layer on the CPU, --plan for --bench: pages train for hours on GPUs
#   apt-get             | makes two small packages: nothing is downloaded
#   install_packages.sh | does nothing: a test installs nothing
#   docker              | runs the container's command here: its image would be downloaded
# What cannot run: pattern | what it needs | why. `never` needs more than a test may have.
cannot='
pip install *                           | never                     | it downloads
python3 -m venv *                       | never                     | it downloads
git clone *                             | never                     | it downloads
lm_eval *                               | never                     | it downloads
torchrun *                              | never                     | two GPUs, torch
scripts/to_gguf.py *                    | never                     | a checkout of llama.cpp
nsys *                                  | never                     | a GPU, Nsight
ncu *                                   | never                     | a GPU, Nsight
scripts/peers/kernels.sh *              | never                     | a GPU, torch
*PEERS=*                                | never                     | torch compiles for minutes
*--peer                                 | never                     | torch compiles for minutes
./train --page * --serve *              | never                     | it serves until Ctrl-C
make build/release/tests/gpu/*          | never                     | a GPU
make build/release/tests/emulated/*     | built release/tests/emulated | headers of CUDA
make build/fuzz/*                       | built fuzz/tests/fuzz     | clang with libFuzzer
./prepare * *.parquet*                  | module pyarrow            | pyarrow
scripts/check_transformers.py *         | module torch transformers | torch, transformers
python3 -c "from transformers *         | module torch transformers | torch, transformers
'
never() { false; }
built() { [ -d "build/$1" ]; }
module() { python3 -c "import $(IFS=,; echo "$*")" 2>/dev/null; }
tools() { [ "$(command -v "$@" | wc -l)" = $# ]; }

# ---- Stand-ins
words() { # COUNT: words that no tokenizer knows, each twice, so that 32000 tokens can be learnt
  awk -v count="$1" 'BEGIN {
    for (i = x = 1; i <= count; i++) {
      word = ""
      for (k = 0; k < 7; k++) { x = (x * 1103 + 12345) % 1048573; word = word sprintf("%c", 97 + x % 26) }
      printf "%s %s%s", word, word, i % 8 ? " " : ".\n"
    }
  }'
}
conversations() {
  seq 300 | sed 's/.*/{"messages":[{"role":"user","content":"Say &!"},{"role":"assistant","content":"It is &."}]}/'
}
bring() { # NAME: in the copy
  mkdir -p "$(dirname "$1")"
  case $1 in
  my_texts) mkdir my_texts && cp "$folder/words" my_texts/words.txt && cp -r base my_texts ;;
  talks.jsonl) conversations >"$1" ;;
  *.jsonl) write_text 200 | sed 's/.*/{"text": "&"}/' >"$1" ;;
  *.gz) write_text 200 | gzip >"$1" ;;
  *.xz) write_text 200 | xz >"$1" ;;
  *.txt) write_text 2000 >"$1" ;;
  *.parquet) ! module pyarrow || python3 -c "import pyarrow.parquet, sys
pyarrow.parquet.write_table(pyarrow.table({'text': ['a text of some words'] * 50}), sys.argv[1])" "$1" ;;
  # Tokens that name no tokenizer go with any model.
  data/*)
    mkdir "$1"
    for part in train val; do token_slice "$folder/data/$part-00000.bin" 4000 >"$1/$part-00000.bin"; done
    ;;
  runs/* | run) cp -r "$folder/run" "$1" ;;
  *) cp -rL "$folder/run/latest" "$1" ;;
  esac
}
program() { # NAME, its text on standard input
  { echo '#!/usr/bin/env bash' && cat; } >"$1" && chmod +x "$1"
}
set_up() {
  words 40000 >"$folder/words"
  mkdir "$folder/bin" "$folder/fresh"
  tree | tar -cf - -T - | tar -xf - -C "$folder/fresh" || exit
  ln -s "$root/build" "$folder/fresh/build"
  ln -s "$PREPARE" "$folder/fresh/prepare"
  program "$folder/fresh/train" <<END
small=(train.steps=4 train.batch_size=1 train.eval_batches=1 train.sample_tokens=8 optimizer.warmup_steps=1
  backend.device=cpu)
[[ " \$*" = *' model='* ]] || grep -q '"model": *"' "\${1/--bench/\$2}" 2>/dev/null ||
  small+=(model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=1 model.num_attention_heads=2
    model.num_key_value_heads=1 model.head_dim=16 model.max_position_embeddings=2048 train.sequence_length=64)
[[ \$1 != *3.2-1b* ]] || small+=(model.vocab_size=400)
case \$1 in
--bench) exec "$TRAIN" --plan \$(printf '%s\n' "\${@:2}" | grep -E '[.]json\$|=') "\${small[@]}" ;;
*.json) exec "$TRAIN" "\$@" "\${small[@]}" ;;
*) exec "$TRAIN" "\$@" ;;
esac
END
  program "$folder/fresh/scripts/install_packages.sh" <<<'echo "packages: a test installs none"'
  program "$folder/bin/make" <<END
case "\$*" in
build/*) exec $(command -v make) -s -C "$root" "\$@" ;;
*) exec $(command -v make) -n "\$@" >/dev/null ;;
esac
END
  # shellcheck disable=SC2016 # docker expands it
  program "$folder/bin/docker" <<<'[ "$1" != build ] || exec ls Dockerfile
while [ "$1" != coda ]; do shift; done
shift && exec "$@"'
  # Manual pages for questions, and one page of words that make 32000 tokens.
  program "$folder/bin/apt-get" <<END
name=\${*: -1} page=manpages/usr/share/man/man3
case \$name in
manpages) mkdir -p \$page && for i in {1..100}; do
  { printf '.TH call%s 3\n.SH NAME\ncall%s \\\\- does the work of number %s\n' \$i \$i \$i
    printf '.SH SYNOPSIS\n.nf\n#include <call.h>\n.PP\nint call%s(int number);\n.fi\n.SH DESCRIPTION\n' \$i
    seq -f "It does %g after \$i, and then some more." 9; } >\$page/call\$i.3
done ;;
doc-debian) mkdir -p \$name/usr/share/doc/\$name && cp "$folder/words" \$name/usr/share/doc/\$name/words.txt ;;
*) exit 1 ;;
esac
mkdir \$name/DEBIAN
printf '%s: %s\n' Package \$name Version 1 Architecture all Maintainer none Description none >\$name/DEBIAN/control
dpkg-deb -b \$name \${name}_1.deb && rm -r \$name
END
  # A model that Hugging Face could have saved, of Llama 3's conversations.
  prepare_data 3000
  write_config "$folder/config.json"
  must "$PREPARE" --train-tokenizer 400 --template llama3 --out "$folder/tok" README.md data/README.md
  must "$PREPARE" --tokenizer "$folder/tok" --out "$folder/data" --force "$folder/text.txt"
  must "$TRAIN" "$folder/config.json" model.vocab_size=400 model.max_position_embeddings=2048 train.steps=2 \
    optimizer.warmup_steps=1
}

# ---- Pages
# The commands of a page, NUL after each: a line, or several where a quote or a backslash holds them together.
commands() {
  local line command=''
  sed -n '/^```sh$/,/^```$/ { /^```/! p; }' "$1" | while IFS= read -r line; do
    command+=${command:+$'\n'}$line
    if [[ $line != *\\ ]] && bash -n <<<"$command" 2>/dev/null; then printf '%s\0' "$command" && command=''; fi
  done
}
# The row of `cannot` that a command matches, or nothing.
row_of() {
  local pattern needs why
  while IFS='|' read -r pattern needs why; do
    pattern=${pattern%"${pattern##*[! ]}"}
    # shellcheck disable=SC2053 # a pattern
    [[ -z $pattern || $1 != $pattern ]] || { echo "$needs|$why|$pattern" && return; }
  done <<<"$cannot"
}
run_page() { # PAGE, in the copy
  local page=$1 command name needs why pattern status
  while IFS= read -r -d '' command; do
    name="$page: $(sed -E 's/ *#.*//; q' <<<"$command")"
    IFS='|' read -r needs why pattern < <(row_of "$command")
    echo "$pattern" >>"$folder/used"
    # shellcheck disable=SC2086 # a command's words
    if [ -n "$needs" ] && ! $needs; then
      echo "ok - $name # SKIP it needs:$why" && continue
    fi
    timeout 120 bash -c "$command" >"$folder/said" 2>&1 </dev/null
    status=$?
    check "$name" "status $status: $(tail -n 3 "$folder/said" | tr -d '\0')" test $status = 0
  done < <(commands "$page")
}

set_up
export PATH=$folder/bin:$PATH CUDA_VISIBLE_DEVICES=''
unset MAKEFLAGS MAKELEVEL MFLAGS
pages=("$@")
[ $# -gt 0 ] || mapfile -t pages < <(tree | grep '\.md$')
for page in "${pages[@]}"; do
  # A fence says what it is, so that no command hides in one that is not run.
  plain=$(awk '/^```/ { inside = !inside; sh = $0 == "```sh" }
    /^```$/ && inside { print FNR ": a fence without a language" }
    inside && !sh && /^(\.\/[a-z]|scripts\/[a-z_\/]+\.|make |pip |python3 |docker )/ { print FNR ": a command" }' "$page")
  check "${page}_says_what_its_fences_are" "$plain" test -z "$plain"
  [ -n "$(commands "$page" | tr '\0' '\n')" ] || continue
  if grep -q '^scripts/fetch_text.sh' "$page" && ! tools dpkg-deb groff zstd xz python3; then
    echo "ok - $page # SKIP fetch_text.sh needs dpkg-deb, groff, zstd, xz and python3"
    continue
  fi
  rm -rf "$folder/copy" && cp -r "$folder/fresh" "$folder/copy" && cd "$folder/copy" || exit
  while IFS='|' read -r of names _; do
    # shellcheck disable=SC2086 # names
    [ "${of%% *}" != "$page" ] || for name in $names; do
      commands "$page" | grep -qz -- "$name\|[*]\.${name##*.}" ||
        fails "${name}_is_on_$page" 'no command uses it: take it out of the table'
      bring "$name"
    done
  done <<<"$brought"
  run_page "$page"
  cd "$root" || exit
done
if [ $# = 0 ]; then
  idle=$(cut -d '|' -f 1 <<<"$cannot" | sed 's/ *$//' | grep . | grep -vxFf <(grep . "$folder/used"))
  check every_row_is_of_a_command "of none: $idle" test -z "$idle"
fi
exit "$failed"
