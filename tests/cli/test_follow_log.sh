#!/usr/bin/env bash
# scripts/follow_log.py with modules in the place of TensorBoard's and W&B's that write down what they are given.
# shellcheck disable=SC2317 # functions are called through check
# shellcheck source=tests/support/lib.sh
. "$(dirname "$0")/../support/lib.sh"
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "ok - a log is followed # SKIP python3 is not installed"
  exit 0
fi
mkdir "$folder/none" "$folder/fakes" "$folder/run"
for module in torch tensorboardX wandb; do echo 'raise ImportError' >"$folder/none/$module.py"; done
cp "$folder/none/torch.py" "$folder/fakes"
cat >"$folder/fakes/tensorboardX.py" <<'END'
class SummaryWriter:
    names = set()
    def __init__(self, folder, purge_step, flush_secs, filename_suffix):
        assert filename_suffix not in self.names
        self.names.add(filename_suffix)
        self.file = open(folder + ".said", "a", buffering=1)
        print("open from", purge_step, file=self.file)
    def add_scalar(self, name, value, step):
        print(step, name, value, file=self.file)
    add_text = add_scalar
    def close(self):
        print("close", file=self.file)
END
cat >"$folder/fakes/wandb.py" <<'END'
def init(**more):
    print("init", more["name"], more["resume"])
def define_metric(*words, **more): pass
log = print
def finish():
    print("finish")
Html = str
END
log=$folder/run/log.jsonl
follows() { PYTHONPATH=$folder/$1 timeout 60 "$python" scripts/follow_log.py "${@:2}" 2>&1; }
start() { echo '{"kind":"start","step":'"$1"',"steps":9,"resumed":'"$2"'}'; }
train() { echo '{"kind":"train","step":'"$1"',"loss":'"$2"',"applied":true}'; }

check a_run_that_has_not_begun_is_named "$(follows fakes "$folder/run")" \
  test "$(follows fakes "$folder/run")" = "follow_log.py: '$log' is not there: give the folder of a run that has begun"
{ start 0 false; train 1 2.5; printf '{"kind":"train","st'; } >"$log"
for to in tensorboard wandb; do
  check "without_${to}_it_says_what_to_install" "$(follows none "$folder/run" --to $to)" \
    test "$(follows none "$folder/run" --to $to | grep -c '^follow_log.py: .* is not installed: pip install ')" = 1
done

# While it is written: half a line waits for its rest, and a resumed run takes steps back.
follows fakes "$folder/run" --seconds 0.05 >"$folder/said" &
process=$!
wait_for '1 train/loss 2.5' "$folder/run/tensorboard.said" $process
{ printf 'ep":2,"loss":null,"lr":0.5}\n'; start 1 true; train 2 2.25; echo '{"kind":"sample","step":2,"text":"a b"}'; } >>"$log"
wait_for '2 sample a b' "$folder/run/tensorboard.said" $process
echo '{"kind":"stop","step":2,"reason":"done"}' >>"$log"
wait $process
status=$?
expected='open from 0
1 train/loss 2.5
1 train/applied 1.0
2 train/lr 0.5
close
open from 2
2 train/loss 2.25
2 train/applied 1.0
2 sample a b
close'
check it_follows_a_run_to_its_end "status $status, $(cat "$folder/said")" test $status = 0
check tensorboard_is_given_every_number "$(cat "$folder/run/tensorboard.said")" \
  test "$(cat "$folder/run/tensorboard.said")" = "$expected"
expected="init run allow
{'step': 1, 'train/loss': 2.5, 'train/applied': 1.0}
{'step': 2, 'train/lr': 0.5}
{'step': 2, 'train/loss': 2.25, 'train/applied': 1.0}
{'step': 2, 'sample': '<pre>a b</pre>'}
finish"
check so_is_wandb "$(follows fakes "$folder/run" --to wandb)" \
  test "$(follows fakes "$folder/run" --to wandb)" = "$expected"
echo 'hello' >>"$log"
check a_line_that_no_run_wrote_is_named "$(follows fakes "$folder/run" --once)" \
  grep -q "log.jsonl' has a line that no run wrote" <(follows fakes "$folder/run" --once)
exit $failed
