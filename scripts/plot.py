#!/usr/bin/env python3
"""Draws the loss curves of one or more runs to a PNG. (plot.py bench --help: what ./train --bench measured.)

A run is the folder that ./train wrote (its log.jsonl is read), or a log file itself. Training loss is drawn thin as it
is and thick smoothed, validation loss with markers; x is the optimizer step. --all adds panels for the learning rate
and the gradient norm.
"""
import argparse
import json
import math
import pathlib
import sys

COLOURS = ["#2f6db3", "#d1622b", "#3b8f5a", "#8a5fb0", "#b8942f", "#c2507f", "#4aa3a8", "#7a7a7a"]


def fail(sentence):
    sys.exit(f"plot.py: {sentence}")


class Run:
    """Records of one log, by kind and step. A resumed run repeats steps: the later record is the one that counts."""

    def __init__(self, path):
        self.log = path / "log.jsonl" if path.is_dir() else path
        if not self.log.exists():
            fail(f"{self.log} does not exist; give a run's folder (output.dir of its config) or its log.jsonl")
        self.name = self.log.resolve().parent.name if self.log.name == "log.jsonl" else self.log.stem
        self.records = {"train": {}, "val": {}}
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            fail(f"{self.log} cannot be read: {error.strerror}")
        unreadable = sum(not self.add(line) for line in text.split("\n") if line.strip())
        if not self.records["train"] and not self.records["val"]:
            fail(f"{self.log} holds no training or validation record" +
                 (" and is not a run's log" if unreadable else " yet"))
        if unreadable:  # a run that is killed while it writes leaves a line that is cut
            print(f"plot.py: {self.log}: {unreadable} cut or unreadable line{'s' * (unreadable > 1)} left out",
                  file=sys.stderr)

    def add(self, line):
        try:
            record = json.loads(line)
            if record["kind"] in self.records:
                self.records[record["kind"]][int(record["step"])] = record
            return True
        except (ValueError, KeyError, TypeError):
            return False

    def series(self, kind, key):
        """Steps and values in step order; what was not finite when it was written is NaN, a gap in the curve."""
        steps = sorted(self.records[kind])
        values = [self.records[kind][step].get(key) for step in steps]
        return steps, [float(v) if isinstance(v, (int, float)) else math.nan for v in values]


def smooth(values, window):
    """Mean of about `window` neighbours around each point, so that the curve lags behind nothing; fewer at the start,
    where the loss falls fastest, to stay centred. NaN stays NaN and is not averaged in."""
    sums, counts = [0.0], [0]
    for value in values:
        finite = math.isfinite(value)
        sums.append(sums[-1] + (value if finite else 0.0))
        counts.append(counts[-1] + finite)
    result = []
    for i, value in enumerate(values):
        reach = min(window // 2, i)
        first, end = i - reach, min(i + reach + 1, len(values))
        mean = (sums[end] - sums[first]) / max(1, counts[end] - counts[first])
        result.append(mean if math.isfinite(value) else math.nan)
    return result


def logarithmic(axes):
    """Logarithmic axis with numbers such as 2, 3 and 0.5 rather than powers of ten, as many as there is room for."""
    from matplotlib.ticker import LogFormatter

    class PlainNumbers(LogFormatter):
        def __call__(self, x, pos=None):
            return f"{x:g}" if super().__call__(x, pos) else ""

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PlainNumbers())
    axes.yaxis.set_minor_formatter(PlainNumbers(minor_thresholds=(2, 0.5)))


def draw_losses(axes, runs, options):
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        steps, losses = run.series("train", "loss")
        val_steps, val_losses = run.series("val", "loss")
        if steps:
            window = options.smooth if options.smooth is not None else max(1, len(steps) // 50)
            if window > 1:
                axes.plot(steps, losses, color=colour, linewidth=0.6, alpha=0.3)
            axes.plot(steps, smooth(losses, window), color=colour, linewidth=1.8, label=f"{run.name}, training")
        if val_steps:
            last = next((v for v in reversed(val_losses) if math.isfinite(v)), math.nan)
            axes.plot(val_steps, val_losses, color=colour, linewidth=1, linestyle="--", marker="o", markersize=5,
                      markerfacecolor="white", markeredgewidth=1.5,
                      label=f"{run.name}, validation ({last:.3f} at the end)")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(options.title or "Loss of " + ", ".join(run.name for run in runs), loc="left", fontweight="bold")
    axes.legend(frameon=False)


def draw_panel(axes, runs, key, label):
    for index, run in enumerate(runs):
        axes.plot(*run.series("train", key), color=COLOURS[index % len(COLOURS)], linewidth=1)
    axes.set_ylabel(label)


def load_pyplot():
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed; install it with: pip install matplotlib  (Debian, Ubuntu: apt install "
             "python3-matplotlib)")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, half the size
    from matplotlib import pyplot
    return pyplot


def save(figure, path):
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be written: {error}")


def draw(runs, options):
    pyplot = load_pyplot()
    rows = 3 if options.all else 1
    figure, axes = pyplot.subplots(rows, 1, sharex=True, squeeze=False, layout="constrained",
                                   figsize=(10, 8 if options.all else 5.6),
                                   gridspec_kw={"height_ratios": [4, 1, 1][:rows]})
    panels = axes[:, 0]
    draw_losses(panels[0], runs, options)
    if options.log:
        logarithmic(panels[0])
    if options.all:
        draw_panel(panels[1], runs, "lr", "learning rate")
        draw_panel(panels[2], runs, "grad_norm", "gradient norm")
        logarithmic(panels[2])
    for panel in panels:
        panel.grid(True, which="both", alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.01)
    panels[-1].set_xlabel("step")
    save(figure, options.output)
    print(f"{options.output}: {', '.join(run.name for run in runs)}")


# ---- What ./train --bench measured

def read_bench(path):
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}; ./train --bench CONFIG.json --json {path} writes it")
    except ValueError as error:
        fail(f"{path} is not JSON: {error}")
    if not isinstance(result, dict) or result.get("kind") != "bench" or not result.get("operations"):
        fail(f"{path} is no bench; ./train --bench CONFIG.json --json FILE writes one")
    return result


def median(operation, what):
    value = operation[what]["median"]
    return value if isinstance(value, (int, float)) else math.nan


def draw_operations(axes, bench):
    """A bar an operation and kind, of all its calls in a step; a tick where the bare products alone would end."""
    operations = bench["operations"]
    for i, operation in enumerate(operations):
        fused, unfused, bare = (median(operation, what) * operation["calls"] for what in ("fused", "unfused", "bare"))
        first = i == 0
        axes.barh(i - 0.19, fused, 0.36, color=COLOURS[0], label="fused" if first else None)
        axes.barh(i + 0.19, unfused, 0.36, color=COLOURS[1], label="unfused" if first else None)
        if math.isfinite(bare):
            axes.plot([bare, bare], [i - 0.42, i + 0.42], color="black", linewidth=1.6)
        axes.text(max(fused, unfused), i, f" {unfused / fused:.2f}", va="center", fontsize=7, color="#555555")
    axes.plot([], [], color="black", linewidth=1.6, label="bare product")
    axes.set_yticks(range(len(operations)),
                    [f"{o['name']} x {o['calls']}" if o["calls"] > 1 else o["name"] for o in operations], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08, y=0.01)
    axes.set_xlabel("ms of a step (number: unfused / fused)")
    axes.set_title(pathlib.Path(bench["config"]).stem + ", " + bench["model"].split(",")[0], loc="left",
                   fontweight="bold", fontsize=9)
    axes.legend(frameon=False, fontsize=8, ncol=3, loc="lower right", bbox_to_anchor=(1, 1))


def draw_step(axes, bench):
    """The step in parts: bare products, attention, the rest; beside it, what the parts are at their least."""
    if "step" not in bench:
        axes.axis("off")
        return
    kinds = ["fused", "unfused", "floor"]
    bottoms = [0.0] * len(kinds)
    for part, colour in (("products", COLOURS[2]), ("attention", COLOURS[3]), ("rest", COLOURS[4])):
        heights = [bench["step_parts"][kind][part] for kind in kinds]
        axes.bar(kinds, heights, 0.62, bottom=bottoms, color=colour, label=part)
        for i, height in enumerate(heights):
            if height > 0.03 * sum(bench["step_parts"]["unfused"].values()):
                axes.text(i, bottoms[i] + height / 2, f"{height:.1f}", ha="center", va="center", color="white", fontsize=8)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for i, total in enumerate(bottoms):
        axes.text(i, total, f"{total:.1f}", ha="center", va="bottom", fontsize=8)
    step = bench["step"]
    axes.set_ylabel("ms a step")
    axes.set_title(f"fused / floor {step['fused_over_floor']:.3f}\nunfused / fused {step['unfused_over_fused']:.3f}",
                   loc="left", fontsize=9)
    axes.margins(y=0.1)
    axes.legend(frameon=False, fontsize=8, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.06))


def draw_bench(benches, output):
    pyplot = load_pyplot()
    heights = [max(2.6, 0.27 * len(bench["operations"]) + 1) for bench in benches]
    figure, axes = pyplot.subplots(len(benches), 2, squeeze=False, layout="constrained", figsize=(11, sum(heights)),
                                   gridspec_kw={"width_ratios": [2.4, 1], "height_ratios": heights})
    for bench, (left, right) in zip(benches, axes):
        draw_operations(left, bench)
        draw_step(right, bench)
        for panel in (left, right):
            panel.spines[["top", "right"]].set_visible(False)
        left.grid(True, axis="x", alpha=0.25, linewidth=0.6)
    gpu = benches[0]["measured"]["gpu"].split(",")[0]
    figure.suptitle("; ".join([gpu] + [f"{pathlib.Path(bench['config']).stem}: {bench['measured']['verdict']}"
                                       for bench in benches]), fontsize=8, x=0.99, ha="right")
    save(figure, output)
    print(f"{output}: {', '.join(pathlib.Path(bench['config']).stem for bench in benches)}")


def main_bench(arguments):
    parser = argparse.ArgumentParser(prog="plot.py bench", description="Draws what ./train --bench CONFIG.json --json "
                                     "FILE measured: a bar an operation, and the step in parts.")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="what --json wrote")
    parser.add_argument("-o", "--output", default="bench.svg", help="the picture to write (default: bench.svg)")
    options = parser.parse_args(arguments)
    benches = [read_bench(path) for path in options.files]
    try:
        draw_bench(benches, options.output)
    except (KeyError, TypeError) as error:
        fail(f"a bench lacks {error}; it is of another version, or was changed")


def main():
    if sys.argv[1:2] == ["bench"]:
        main_bench(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN_OR_LOG",
                        help="a run's folder, or its log.jsonl")
    parser.add_argument("-o", "--output", default="loss.png", help="the picture to write (default: loss.png)")
    parser.add_argument("--log", action="store_true", help="logarithmic loss axis")
    parser.add_argument("--all", action="store_true", help="panels for learning rate and gradient norm too")
    parser.add_argument("--smooth", type=int, metavar="N",
                        help="average training loss over about N records (default: a fiftieth of them; 1 = as it is)")
    parser.add_argument("--title", help="title of the picture")
    options = parser.parse_args()
    if options.smooth is not None and options.smooth < 1:
        fail(f"--smooth {options.smooth}: at least 1")
    draw([Run(path) for path in options.runs], options)


if __name__ == "__main__":
    main()
