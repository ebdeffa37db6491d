#!/usr/bin/env python3
"""Draws the loss curves of one or more runs to a PNG. (plot.py bench --help: what ./train --bench measured.)

A run is the folder that ./train wrote (its log.jsonl is read), or a log file itself. Training loss is drawn thin as it
is and thick smoothed, validation loss with markers and its standard error; x is the optimizer step. --all adds panels
for the learning rate and the gradient norm.
"""
import argparse
import html
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


# ---- What ./train --bench measured, as SVG: a line of text for each operation, so that two pictures can be compared

STYLE = """<style>
.end{text-anchor:end} .mid{text-anchor:middle} .bold{font-weight:bold} .small{font-size:9px}
.fused{fill:#2f6db3} .unfused{fill:#d1622b} .bare{stroke:#000;stroke-width:1.6;fill:none}
.products{fill:#3b8f5a} .attention{fill:#8a5fb0} .rest{fill:#b8942f}
.light{fill:#fff} .grey{fill:#555} .grid{stroke:#ddd;fill:none}
</style>"""
WIDTH, LEFT, RIGHT = 900, 165, 590  # of the picture; the bars of operations lie between LEFT and RIGHT
ROW = 18  # height of an operation
STEP_LEFT = 650  # the bars of a step begin here


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


def text(x, y, words, classes=""):
    return f'<text x="{x:g}" y="{y:g}"' + (f' class="{classes}"' if classes else "") + f">{html.escape(words)}</text>"


def bar(x, y, width, height, kind):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'


def ticks(most):
    """Round numbers from 0 to `most`, at most seven."""
    step = 10.0 ** math.floor(math.log10(most / 6))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    return [step * i for i in range(int(most / step) + 1)]


def draw_operations(bench, top):
    """A bar for each kind of an operation, of all its calls in a step; a tick where the bare GEMMs alone would end."""
    rows = []
    for operation in bench["operations"]:
        times = [median(operation, what) * operation["calls"] for what in ("fused", "unfused", "bare")]
        calls = f" x {operation['calls']}" if operation["calls"] > 1 else ""
        rows.append((operation["name"] + calls, times))
    most = max((time for _, times in rows for time in times if math.isfinite(time)), default=1.0)
    scale = (RIGHT - LEFT) / (1.04 * most)
    name = pathlib.Path(bench["config"]).stem + ", " + bench["model"].split(",")[0]
    bottom = top + 26 + ROW * len(rows)
    lines = [text(12, top + 12, name, "bold")]
    for kind, x in (("fused", RIGHT - 205), ("unfused", RIGHT - 147)):
        lines.append(bar(x, top + 4, 9, 9, kind) + text(x + 13, top + 12, kind))
    lines.append(f'<path d="M{RIGHT - 73} {top + 3}v11" class="bare"/>' + text(RIGHT - 66, top + 12, "bare GEMM"))
    for tick in ticks(most):
        x = round(LEFT + scale * tick, 1)
        lines.append(f'<path d="M{x:g} {top + 22}V{bottom}" class="grid"/>' + text(x, bottom + 13, f"{tick:g}", "mid"))
    lines.append(text(LEFT, bottom + 28, "ms of a step; the number: unfused / fused", "grey"))
    for i, (label, (fused, unfused, bare)) in enumerate(rows):
        y = top + 25 + ROW * i
        line = text(LEFT - 6, y + 11, label, "end")
        for time, kind, offset in ((fused, "fused", 1), (unfused, "unfused", 8)):
            line += bar(LEFT, y + offset, scale * time, 6.5, kind) if math.isfinite(time) else ""
        if math.isfinite(bare):
            line += f'<path d="M{LEFT + scale * bare:.1f} {y - 0.5:g}v16.5" class="bare"/>'
        if math.isfinite(unfused / fused):
            end = LEFT + scale * max(t for t in (fused, unfused, bare) if math.isfinite(t))
            line += text(round(end + 5, 1), y + 11, f"{unfused / fused:.2f}", "grey small")
        lines.append(line)
    return lines, bottom + 34


def draw_step(bench, top, bottom):
    """The step in parts: bare GEMMs, attention, the rest; beside it, what the parts are at their least."""
    if "step" not in bench:
        return []
    kinds = ("fused", "unfused", "floor")
    parts = [[bench["step_parts"][kind][part] for part in ("products", "attention", "rest")] for kind in kinds]
    ratios = bench["step"]
    lines = [text(STEP_LEFT, top + 12, f"step, ms: fused / floor {ratios['fused_over_floor']:.3f},", "bold"),
             text(STEP_LEFT, top + 26, f"unfused / fused {ratios['unfused_over_fused']:.3f}", "bold")]
    base, most = bottom - 34, max(sum(heights) for heights in parts)
    scale = (base - top - 46) / most
    for i, (kind, heights) in enumerate(zip(kinds, parts)):
        x, y, line = STEP_LEFT + 78 * i, base, ""
        for part, height in zip(("products", "attention", "rest"), heights):
            y -= scale * height
            line += bar(x, y, 62, scale * height, part)
            if scale * height > 11:
                line += text(x + 31, round(y + scale * height / 2 + 4, 1), f"{height:.1f}", "mid light")
        line += text(x + 31, round(y - 4, 1), f"{sum(heights):.1f}", "mid") + text(x + 31, base + 13, kind, "mid")
        lines.append(line)
    for i, (part, words) in enumerate((("products", "bare GEMMs"), ("attention", "attention"), ("rest", "the rest"))):
        x = STEP_LEFT + 90 * i
        lines.append(bar(x, base + 20, 9, 9, part) + text(x + 13, base + 28, words))
    return lines


def draw_bench(benches, options):
    gpu = benches[0]["measured"]["gpu"].split(",")[0]
    verdicts = [f"{pathlib.Path(bench['config']).stem}: {bench['measured']['verdict']}" for bench in benches]
    lines, top = [text(WIDTH - 12, 16, "; ".join([options.title or gpu] + verdicts), "end grey small")], 24
    for bench in benches:
        operations, bottom = draw_operations(bench, top)
        lines += operations + draw_step(bench, top, bottom)
        top = bottom + 14
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
            'font-family="sans-serif" font-size="11">')
    picture = "\n".join([head, STYLE, '<rect width="100%" height="100%" fill="#fff"/>', *lines, "</svg>"]) + "\n"
    try:
        pathlib.Path(options.output).write_text(picture, encoding="utf-8")
    except OSError as error:
        fail(f"{options.output} cannot be written: {error}")
    print(f"{options.output}: {', '.join(pathlib.Path(bench['config']).stem for bench in benches)}")


def main_bench(arguments):
    parser = argparse.ArgumentParser(prog="plot.py bench", description="Draws what ./train --bench CONFIG.json --json "
                                     "FILE measured as SVG: a bar an operation, and the step in parts.")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="what --json wrote")
    parser.add_argument("-o", "--output", default="bench.svg", help="the picture to write (default: bench.svg)")
    parser.add_argument("--title", help="what stands above the picture instead of the GPU's name")
    options = parser.parse_args(arguments)
    if not options.output.endswith(".svg"):
        fail(f"{options.output}: a bench is drawn as SVG; give the picture a name that ends in .svg")
    benches = [read_bench(path) for path in options.files]
    try:
        draw_bench(benches, options)
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
