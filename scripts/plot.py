#!/usr/bin/env python3
"""Draws the loss curves of one or more runs to a PNG.

A run is the folder that ./train wrote (its log.jsonl is read), or a log file itself. Training loss is drawn thin as it
is and thick smoothed, validation loss with markers and its standard error; x is the optimizer step. --all adds panels
for the learning rate and the gradient norm.
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
            _, errors = run.series("val", "stderr")  # NaN, and no bar, in older logs and where one batch is read
            last, error = next(((v, e) for v, e in zip(reversed(val_losses), reversed(errors)) if math.isfinite(v)),
                               (math.nan, math.nan))
            said = f"{last:.3f} +- {error:.3f}" if error > 0 else f"{last:.3f}"
            axes.errorbar(val_steps, val_losses, yerr=errors, color=colour, linewidth=1, linestyle="--", marker="o",
                          markersize=5, markerfacecolor="white", markeredgewidth=1.5, capsize=3,
                          label=f"{run.name}, validation ({said} at the end)")
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


def main():
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
