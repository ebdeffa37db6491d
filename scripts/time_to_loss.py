#!/usr/bin/env python3
"""Table and picture of scripts/time_to_loss.sh: how long each recipe's runs needed to reach a loss.

usage: time_to_loss.py OUT --seeds S ... --recipes NAME ... [--target LOSS]

Reads OUT/NAME/seed-S/log.jsonl, prints the table, and writes OUT/table.md and OUT/loss.png.
"""
import argparse
import math
import pathlib
import statistics
import sys

from plot import COLOURS, Run, load_pyplot, save


def fail(sentence):
    sys.exit(f"time_to_loss.py: {sentence}")


def mean(values):
    return sum(values) / len(values)


def standard_error(values):
    """Of their mean; NaN of a single one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


class Times:
    """A run's validations: their steps, losses, and the tokens and seconds of training before each."""

    def __init__(self, folder):
        log = Run(folder)
        steps, ms = log.series("train", "ms")
        _, rates = log.series("train", "tokens_per_s")
        self.steps, self.losses = log.series("val", "loss")
        self.read = set(log.series("val", "tokens")[1])
        if len(self.steps) < 2 or len(self.read) != 1:
            fail(f"{folder} has fewer than two validations, or they read different tokens")
        if not all(map(math.isfinite, self.losses)):
            fail(f"{folder} has a validation loss that is not finite: remove the recipe, or lower its rate")
        self.ms = statistics.median(ms)
        step_tokens = round(statistics.median(m * rate for m, rate in zip(ms, rates)) / 1000)
        so_far, elapsed = 0.0, {0: 0.0}
        for step, one in zip(steps, ms):
            so_far += (self.ms if step == steps[0] else one) / 1000
            elapsed[step] = so_far
        self.tokens = [step * step_tokens for step in self.steps]
        self.seconds = [elapsed[step] for step in self.steps]


class Recipe:
    """A recipe's runs, one a seed, averaged at each validation."""

    def __init__(self, out, name, seeds):
        paths = [out / name / f"seed-{seed}" for seed in seeds]
        self.name, self.runs = name, [Times(path) for path in paths if (path / "done").exists()]
        if not self.runs:
            return
        first = self.runs[0]
        if any(run.steps != first.steps for run in self.runs):
            fail(f"the runs of {out / name} have their validations at different steps")
        self.steps, self.tokens = first.steps, first.tokens
        self.losses = [mean(at) for at in zip(*(run.losses for run in self.runs))]
        self.seconds = [mean(at) for at in zip(*(run.seconds for run in self.runs))]
        self.ms = statistics.median(run.ms for run in self.runs)
        self.error = standard_error([run.losses[-1] for run in self.runs])

    def crossing(self, target):
        """Steps, tokens and seconds at which the mean first reaches the target, and what share of the seconds is their
        standard error; None where it does not."""
        at = next((i for i, loss in enumerate(self.losses) if loss <= target), None)
        if at is None:
            return None
        if at == 0:
            fail(f"{self.name} has the target before its first step; give a lower --target than {self.losses[0]:.4f}")
        share = (self.losses[at - 1] - target) / (self.losses[at - 1] - self.losses[at])

        def between(values):
            return values[at - 1] + share * (values[at] - values[at - 1])

        slope = (self.losses[at - 1] - self.losses[at]) / (self.seconds[at] - self.seconds[at - 1])
        error = standard_error([between(run.losses) for run in self.runs]) / slope
        return between(self.steps), between(self.tokens), between(self.seconds), error / between(self.seconds)


def with_error(value, error, digits):
    return f"{value:.{digits}f}" + (f" +- {error:.{digits}f}" if math.isfinite(error) else "")


def row(recipe, target, base):
    """A line of the table. `base` is the first recipe's crossing."""
    cells = [recipe.name, f"{len(recipe.runs)}", f"{recipe.ms:.1f}", with_error(recipe.losses[-1], recipe.error, 4),
             f"{recipe.steps[-1]}", f"{recipe.tokens[-1] / 1e6:.3f}", f"{recipe.seconds[-1]:.1f}"]
    there = recipe.crossing(target)
    if there is None:
        cells += ["not reached", "", "", "", ""]
    else:
        steps, tokens, seconds, share = there
        cells += [with_error(steps, share * steps, 0), with_error(tokens / 1e6, share * tokens / 1e6, 3),
                  with_error(seconds, share * seconds, 1)]
        cells += [f"{tokens / base[1]:.3f}", f"{seconds / base[2]:.3f}"] if base else ["", ""]
    return f"| {' | '.join(cells)} |"


def table(recipes, target):
    heads = ["recipe", "seeds", "ms a step", "final loss", "steps", "M tokens", "s", f"steps to {target:.4f}",
             "M tokens", "s", "tokens", "s, of the first's"]
    base = recipes[0].crossing(target)
    return "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads),
                      *(row(recipe, target, base) for recipe in recipes)])


def draw(recipes, target, path):
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(layout="constrained", figsize=(10, 5.6))
    for index, recipe in enumerate(recipes):
        errors = [standard_error(at) for at in zip(*(run.losses for run in recipe.runs))]
        axes.errorbar(recipe.seconds, recipe.losses, yerr=errors if math.isfinite(errors[0]) else None,
                      color=COLOURS[index % len(COLOURS)], linestyle=["-", "--", ":"][index // len(COLOURS) % 3],
                      linewidth=1.4, elinewidth=0.8, label=f"{recipe.name} ({recipe.losses[-1]:.3f})")
    axes.axhline(target, color="#555555", linewidth=0.8, linestyle=(0, (6, 4)))
    ends = [recipe.losses[-1] for recipe in recipes]
    # What is before a fifth of the first run is too steep to tell recipes apart.
    early = recipes[0].losses[len(recipes[0].losses) // 5]
    axes.set_ylim(min(ends) - 0.1 * (early - min(ends)), max(early, max(ends)))
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss (nats per token)")
    axes.set_title(f"Validation loss, target {target:.4f}", loc="left", fontweight="bold")
    axes.grid(True, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seeds", nargs="+", required=True)
    parser.add_argument("--recipes", nargs="+", required=True)
    parser.add_argument("--target", type=float, help="without it, what the first recipe ends with")
    options = parser.parse_args()
    recipes = [Recipe(options.out, name, options.seeds) for name in options.recipes]
    for recipe in recipes:
        if len(recipe.runs) < len(options.seeds):
            print(f"{recipe.name}: {len(recipe.runs)} of {len(options.seeds)} runs are done", file=sys.stderr)
    if options.target is None and not recipes[0].runs:
        fail(f"{recipes[0].name}, whose final loss is the target, has no run; --target names another one")
    recipes = [recipe for recipe in recipes if recipe.runs]
    if not recipes:
        fail("no run is done")
    read = set().union(*(run.read for recipe in recipes for run in recipe.runs))
    if len(read) > 1:
        fail(f"validations read {' and '.join(f'{n:.0f}' for n in sorted(read))} tokens: where a recipe changes "
             "train.batch_size, train.eval_batches has to follow")
    target = options.target if options.target is not None else recipes[0].losses[-1]
    said = table(recipes, target)
    print(said)
    (options.out / "table.md").write_text(said + "\n", encoding="utf-8")
    try:
        draw(recipes, target, options.out / "loss.png")
    except SystemExit as without:  # matplotlib is missing: the table is there without it
        print(without, file=sys.stderr)


if __name__ == "__main__":
    main()
