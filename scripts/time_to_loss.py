#!/usr/bin/env python3
"""Trains recipes over several seeds and prints how long each needs to reach a loss.

usage: scripts/time_to_loss.py RECIPES OUT [options] [section.key=value ...]

RECIPES is small (ten minutes a run on two cores), 35m, 110m, 350m, or a file with lines like these:

  all CONFIG.json section.key=value ...    what every run has
  NAME section.key=value ...               a recipe; the others are compared with the first
  NAME peer=compile+amp ...                the same in PyTorch (scripts/torch_llama.py --help)

A recipe with another horizon has a train.steps of its own. Keys of the command line are for every
run, over what the file says. OUT gets

  NAME/seed-S/log.jsonl    the runs; one that is done is not run again
  table.md                 the table that is printed
  runs.tsv                 a line for each run: recipe, seed, steps, ms a step, seconds, final loss
  loss.svg                 the mean losses over the seconds of steps
  page.html                all runs, for a browser (./train --page)

scripts/README.md says what is measured, and how it is averaged over seeds.
"""
import argparse
import html
import itertools
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def fail(sentence):
    sys.exit(f"time_to_loss.py: {sentence}")


# ---- Runs

def read_recipes(path, overrides):
    """Of each recipe the words of its command and its peer, or None."""
    common, recipes = [], {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, *words = line.split("#")[0].split() or [""]
        peers = [word[5:] for word in words if word.startswith("peer=")]
        words = [word for word in words if not word.startswith("peer=")]
        if name == "all":
            common = words
        elif name in recipes:
            fail(f"{path}: there are two recipes '{name}'")
        elif name:
            recipes[name] = words, peers[0] if peers else None
    if not common or not common[0].endswith(".json"):
        fail(f"{path}: there is no line 'all CONFIG.json ...'")
    return {name: ([*common, *words, *overrides], peer) for name, (words, peer) in recipes.items()}


def choose(recipes, options):
    for name in options.only:
        if name not in recipes:
            fail(f"there is no recipe '{name}' in {options.recipes}; it has {' '.join(recipes)}")
    chosen = {name: recipes[name] for name in options.only or recipes
              if options.peer or recipes[name][1] is None}
    return chosen or fail(f"no recipe is left of {options.recipes}; those with peer= need --peer")


def check_recipes(recipes):
    """What ./train would refuse is said before the first run, not hours later. Returns a config."""
    for name, (words, _) in recipes.items():
        said = subprocess.run(["./train", "--plan", *words], capture_output=True, text=True,
                              check=False)
        if said.returncode:
            fail(f"recipe {name}: {said.stderr.strip()}")
    return json.JSONDecoder().raw_decode(said.stdout)[0]


def make_data(options, vocabulary):
    """The folder with token files, which are made if none is given."""
    if options.data:
        if not all(any(options.data.glob(f"{part}-*.bin")) for part in ("train", "val")):
            fail(f"'{options.data}' has no train-*.bin or no val-*.bin; ./prepare makes them")
        return options.data
    data, tok, text = options.out / "data", options.out / "tok", options.text
    prepare = ["./prepare", "--val-fraction", "0.02", "--tokenizer", tok, "--out", data, text]
    for made, command in (
            (text, ["scripts/fetch_text.sh", text.parent]),
            (tok, ["./prepare", "--train-tokenizer", str(vocabulary), "--out", tok, text]),
            (data, prepare)):
        if not made.exists() and subprocess.run(command, check=False).returncode:
            sys.exit(1)
    return data


def run(folder, command):
    """Once; what it says is in said.txt. Half a run starts over: its time is worth nothing."""
    done, log, text = folder / "done", folder / "log.jsonl", " ".join(command) + "\n"
    if done.exists():
        if done.read_text(encoding="utf-8") != text:
            fail(f"{folder} was run with other settings; remove it, or give another OUT")
        return True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{folder.parent.name}, {folder.name}", end=": ", flush=True)
    with open(folder / "said.txt", "wb") as file:
        status = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    if status == 0 and log.exists() and log.read_text(encoding="utf-8").endswith('"done"}\n'):
        done.write_text(text, encoding="utf-8")
        print(f"validation loss {Run(folder).series('val', 'loss')[1][-1]:.4f}", flush=True)
        return True
    said = (folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip()
    print(f"it did not run to its end: {said[said.rfind(chr(10)) + 1:]}", flush=True)
    return False


def run_all(options, recipes):
    """Trains what is missing. Returns whether all ran to their ends."""
    data = make_data(options, check_recipes(recipes)["model"]["vocab_size"])
    good = True
    for seed in options.seeds:
        for name, (words, peer) in recipes.items():
            folder, program = options.out / name / f"seed-{seed}", ["./train"]
            if peer:
                program = [os.environ.get("PYTHON", "python3"), "scripts/torch_llama.py", peer]
            good &= run(folder, [
                *program, words[0], f"data.train={data}/train-*.bin", f"data.val={data}/val-*.bin",
                "train.save_interval=-1", "train.sample_interval=-1", *words[1:],
                f"train.seed={seed}", f"output.dir={folder}"])
    return good


# ---- What they needed

def standard_error(values):
    """Of their mean; NaN of a single one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


class Run:
    """The records of a run's log, by kind and step. A resumed run repeats steps: the later record
    counts."""

    def __init__(self, folder):
        self.records = {"train": {}, "val": {}}
        for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["kind"] in self.records:
                self.records[record["kind"]][record["step"]] = record

    def series(self, kind, key):
        """Steps and values in the order of steps; NaN is what was not finite, or is not there."""
        records = sorted(self.records[kind].items())
        values = [record.get(key) for _, record in records]
        return [step for step, _ in records], [math.nan if v is None else v for v in values]


class Times:
    """A run's validations: their steps, losses, and tokens and seconds of training before each."""

    def __init__(self, folder):
        self.folder, log = folder, Run(folder)
        steps, ms = log.series("train", "ms")
        _, rates = log.series("train", "tokens_per_s")
        self.steps, self.losses = log.series("val", "loss")
        self.read = set(log.series("val", "tokens")[1])
        if len(self.steps) < 2 or not all(map(math.isfinite, self.losses)):
            fail(f"{folder} has fewer than two validations, or a loss that is not finite: remove "
                 "the recipe, or lower its rate")
        self.ms = ms[0] = statistics.median(ms)
        step_tokens = round(statistics.median(m * rate for m, rate in zip(ms, rates)) / 1000)
        elapsed = dict(zip([0, *steps], itertools.accumulate(ms, initial=0)))
        self.tokens = [step * step_tokens for step in self.steps]
        self.seconds = [elapsed[step] / 1000 for step in self.steps]


class Recipe:
    """A recipe's runs, one a seed, averaged at each validation."""

    def __init__(self, out, name, seeds):
        paths = [out / name / f"seed-{seed}" for seed in seeds]
        self.name, self.runs = name, [Times(path) for path in paths if (path / "done").exists()]
        if not self.runs:
            return
        self.steps, self.tokens = self.runs[0].steps, self.runs[0].tokens
        if any(run.steps != self.steps for run in self.runs):
            fail(f"the runs of {out / name} have their validations at different steps")
        losses = list(zip(*(run.losses for run in self.runs)))
        self.losses = list(map(statistics.fmean, losses))
        self.errors = list(map(standard_error, losses))
        self.seconds = list(map(statistics.fmean, zip(*(run.seconds for run in self.runs))))
        self.ms = statistics.median(run.ms for run in self.runs)

    def crossing(self, target):
        """Steps, tokens and seconds at which the mean first reaches the target, and what share of
        the seconds is their standard error; None where it does not."""
        at = next((i for i, loss in enumerate(self.losses) if loss <= target), None)
        if at is None:
            return None
        if at == 0:
            fail(f"{self.name} has the target before its first step; give a lower --target than "
                 f"{self.losses[0]:.4f}")
        fall = self.losses[at - 1] - self.losses[at]
        share = (self.losses[at - 1] - target) / fall

        def between(values):
            return values[at - 1] + share * (values[at] - values[at - 1])

        slope = fall / (self.seconds[at] - self.seconds[at - 1])
        error = standard_error([between(run.losses) for run in self.runs]) / slope
        seconds = between(self.seconds)
        return between(self.steps), between(self.tokens), seconds, error / seconds


def with_error(value, error, digits):
    return f"{value:.{digits}f}" + (f" +- {error:.{digits}f}" if math.isfinite(error) else "")


def table(recipes, target):
    base = recipes[0].crossing(target)
    lines = [["recipe", "seeds", "ms a step", "final loss", "steps", "M tokens", "s",
              f"steps to {target:.4f}", "M tokens", "s", "tokens", "s, of the first's"]]
    lines.append(["---"] * len(lines[0]))
    for recipe in recipes:
        lines.append([recipe.name, f"{len(recipe.runs)}", f"{recipe.ms:.1f}",
                      with_error(recipe.losses[-1], recipe.errors[-1], 4), f"{recipe.steps[-1]}",
                      f"{recipe.tokens[-1] / 1e6:.3f}", f"{recipe.seconds[-1]:.1f}"])
        there = recipe.crossing(target)
        if not there:
            lines[-1] += ["not reached", "", "", "", ""]
            continue
        steps, tokens, seconds, share = there
        lines[-1] += [with_error(steps, share * steps, 0),
                      with_error(tokens / 1e6, share * tokens / 1e6, 3),
                      with_error(seconds, share * seconds, 1),
                      f"{tokens / base[1]:.3f}" if base else "",
                      f"{seconds / base[2]:.3f}" if base else ""]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def run_lines(recipes):
    lines = ["recipe\tseed\tsteps\tms\tseconds\tloss\n"]
    for recipe in recipes:
        for run in recipe.runs:
            lines.append(f"{recipe.name}\t{run.folder.name[5:]}\t{run.steps[-1]}\t{run.ms:.2f}\t"
                         f"{run.seconds[-1]:.1f}\t{run.losses[-1]:.4f}\n")
    return "".join(lines)


def picture(recipes):
    """SVG: a line for each recipe, from two nats above the highest loss at an end."""
    colors = "#d9822b", "#3b6ea5", "#4d9a5b", "#a05195", "#7f7f7f"
    left, right, top, bottom = 50, 740, 16, 380
    ends, longest = [recipe.losses[-1] for recipe in recipes], max(recipe.seconds[-1] for recipe in recipes)
    low, high = math.floor(2 * min(ends)) / 2, math.ceil(2 * max(ends)) / 2 + 2

    def at(seconds, loss):
        return (left + (right - left) * seconds / longest, bottom - (bottom - top) * (loss - low) / (high - low))

    def text(x, y, words, more=""):
        svg.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{words}</text>')

    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 420" width="760" height="420" '
           'font-family="sans-serif" font-size="13" text-anchor="end">',
           '<rect width="760" height="420" fill="#ffffff"/>']
    text(right, bottom + 36, "seconds of steps")
    text(left, bottom + 36, "validation loss, nats a token", 'text-anchor="start"')
    for loss in (half / 2 for half in range(round(2 * low), round(2 * high) + 1)):
        svg.append(f'<path d="M{left} {at(0, loss)[1]:.1f}H{right}" stroke="#dddddd"/>')
        text(left - 8, at(0, loss)[1] + 4, loss)
    tick = 10 ** math.floor(math.log10(longest))
    for count in range(int(longest / tick) + 1):
        text(at(count * tick, low)[0] + 4, bottom + 18, f"{count * tick:g}")
    for number, recipe in enumerate(recipes):
        color = colors[number % len(colors)]
        inside = [at(*point) for point in zip(recipe.seconds, recipe.losses) if point[1] <= high]
        svg.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in inside)}" fill="none" '
                   f'stroke="{color}" stroke-width="2.5"/>')
        svg.append(f'<circle cx="{inside[-1][0]:.1f}" cy="{inside[-1][1]:.1f}" r="4" fill="{color}"/>')
        text(right - 8, top + 18 + 20 * number,
             f"{html.escape(recipe.name)}: {recipe.losses[-1]:.3f} after {recipe.seconds[-1]:.1f} s", f'fill="{color}"')
    return "\n".join(svg) + "\n</svg>\n"


def compare(recipes, options):
    """Prints the table; writes it, the runs, the picture and the page."""
    read = set().union(*(run.read for recipe in recipes for run in recipe.runs))
    if len(read) > 1:
        fail(f"validations read {' and '.join(f'{n:.0f}' for n in sorted(read))} tokens: where a "
             "recipe changes train.batch_size, train.eval_batches has to follow")
    target = options.target if options.target is not None else recipes[0].losses[-1]
    said = table(recipes, target)
    print(said, end="")
    for name, text in (("table.md", said), ("runs.tsv", run_lines(recipes)), ("loss.svg", picture(recipes))):
        (options.out / name).write_text(text, encoding="utf-8")
    paths = [str(run.folder) for recipe in recipes for run in recipe.runs]
    subprocess.run(["./train", "--page", *paths, "--out", str(options.out / "page.html")],
                   check=True)


def parse():
    """The command line, with paths that outlive a change of folder, and its overrides."""
    def path(text):
        full = pathlib.Path(text).resolve()
        return full.relative_to(ROOT) if full.is_relative_to(ROOT) else full

    def numbers(text):
        if not all(map(str.isdecimal, text.split())):
            raise argparse.ArgumentTypeError(f"'{text}' is not whole numbers with spaces between them")
        return [int(word) for word in text.split()]

    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS,
                                     allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail
    parser.add_argument("recipes", metavar="RECIPES")
    parser.add_argument("out", metavar="OUT", type=path)
    parser.add_argument("--data", metavar="FOLDER", type=path, help="token files of ./prepare; "
                        "without it they are made in OUT/data, of the model's vocabulary")
    parser.add_argument("--text", type=path, help="what ./prepare takes; without it "
                        "scripts/fetch_text.sh fetches OUT/text")
    parser.add_argument("--seeds", metavar="'S ...'", default=[1, 2, 3], type=numbers,
                        help="of weights and order ('1 2 3')")
    parser.add_argument("--only", metavar="'NAME ...'", default=[], type=str.split,
                        help="these recipes; the first is then the first of these")
    parser.add_argument("--target", metavar="LOSS", type=float,
                        help="validation loss to reach; without it, the first recipe's at its end")
    parser.add_argument("--peer", action="store_true", help="the recipes with peer=, too; PYTHON "
                        "(python3) has torch 2.9 or later")
    options, overrides = parser.parse_known_args()
    for word in overrides:
        if word.startswith("-") or "=" not in word:
            fail(f"'{word}' is neither an option nor section.key=value; --help lists the options")
    shipped = ROOT / f"scripts/recipes/{options.recipes}.txt"
    options.recipes = shipped if shipped.exists() else pathlib.Path(options.recipes).resolve()
    options.text = options.text or options.out / "text/text.jsonl.zst"
    if not options.recipes.is_file():
        fail(f"there is no file '{options.recipes.name}'; shipped are "
             f"{' '.join(sorted(path.stem for path in shipped.parent.glob('*.txt')))}")
    return options, overrides


def main():
    options, overrides = parse()
    os.chdir(ROOT)
    for program in "train", "prepare":
        if not os.access(program, os.X_OK):
            fail(f"there is no program './{program}'; build it: make all")
    os.environ["OMP_WAIT_POLICY"] = "passive"  # train would start itself over to set it
    recipes = choose(read_recipes(options.recipes, overrides), options)
    good = run_all(options, recipes)
    measured = [Recipe(options.out, name, options.seeds) for name in recipes]
    compare([one for one in measured if one.runs] or fail("no run is done"), options)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
