#!/usr/bin/env python3
"""Follows a run's log.jsonl into TensorBoard or Weights & Biases, until the run ends."""
import argparse
import hashlib
import html
import json
import os
import sys
import time


def fail(sentence):
    sys.exit(f"follow_log.py: {sentence}")


class TensorBoard:
    """Event files in a folder, less what an earlier follower wrote and what a resume takes back."""

    def __init__(self, run, args):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                fail("TensorBoard's writer is not installed: pip install tensorboardX, or torch and "
                     "tensorboard")
        out = args.out or os.path.join(run, "tensorboard")
        self.open = lambda step: SummaryWriter(  # files are named by the second
            out, purge_step=step, flush_secs=10, filename_suffix=f".{time.time_ns()}")
        self.writer = self.open(0)
        self.close = lambda: self.writer.close()

    def go_back(self, step):
        self.writer.close()
        self.writer = self.open(step + 1)

    def add(self, step, numbers, text):
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        if text:
            self.writer.add_text("sample", text, step)


class Wandb:
    """The same run of W&B whenever a folder is followed. Its steps may only grow: ours are values."""

    def __init__(self, run, args):
        try:
            import wandb
        except ImportError:
            fail("wandb is not installed: pip install wandb")
        self.wandb = wandb
        wandb.init(project=args.project, name=os.path.basename(run), resume="allow",
                   id=hashlib.sha256(run.encode()).hexdigest()[:16])
        self.go_back = lambda step: None
        self.close = wandb.finish
        wandb.define_metric("step")
        wandb.define_metric("*", step_metric="step")

    def add(self, step, numbers, text):
        sample = {"sample": self.wandb.Html(f"<pre>{html.escape(text)}</pre>")} if text else {}
        self.wandb.log({"step": step, **numbers, **sample})


def show(record, to):
    """One record of log.jsonl; model/run/log.h lists them. null, a number not finite, is left out."""
    kind, step = record["kind"], record["step"]
    if kind == "start" and record["resumed"]:
        to.go_back(step)
    if kind in ("train", "val", "sample"):
        to.add(step, {f"{kind}/{name}": float(value) for name, value in record.items()
                      if name != "step" and isinstance(value, (int, float))}, record.get("text"))


def follow(path, to, args):
    """Gives every whole line to `to`, and waits for more unless the run has ended."""
    at, last = 0, ""
    while True:
        with open(path, "rb") as log:
            log.seek(at)
            for line in log:
                if not line.endswith(b"\n"):
                    break  # is still being written
                at += len(line)
                record = json.loads(line)
                last = record["kind"]
                show(record, to)
        if args.once or last == "stop":
            return
        time.sleep(args.seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("--to", choices=["tensorboard", "wandb"], default="tensorboard")
    parser.add_argument("--out", help="TensorBoard's folder (RUN/tensorboard)")
    parser.add_argument("--project", default="coda.c", help="of Weights & Biases (coda.c)")
    parser.add_argument("--once", action="store_true", help="what is there now, without waiting")
    parser.add_argument("--seconds", type=float, default=2, help="between two looks (2)")
    args = parser.parse_args()
    run = os.path.abspath(args.run)
    path = os.path.join(run, "log.jsonl")
    if not os.path.exists(path):
        fail(f"'{path}' is not there: give the folder of a run that has begun")
    to = (TensorBoard if args.to == "tensorboard" else Wandb)(run, args)
    try:
        follow(path, to, args)
    except KeyboardInterrupt:
        pass
    except (ValueError, KeyError) as error:
        fail(f"'{path}' has a line that no run wrote: {error}")
    to.close()


main()
