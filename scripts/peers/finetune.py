#!/usr/bin/env python3
"""Fine-tunes a folder on conversations with ./train and with transformers, both in fp32 on the CPU.

usage: finetune.py MODEL DATASET OUT [--steps N] [section.key=value ...]

MODEL is a Hugging Face folder or a run, DATASET a folder of ./prepare --chat, whose conversations
fit into a window. A step sees all of them, half of ./train's as a second micro-batch where their
number of windows is even: then the order and the packing change nothing. transformers gets each
conversation by itself, with labels of -100 where the mask of the .docs file is 0, and divides by
the tokens that count in the step. Prints both losses and norms step by step, and the largest
differences. Needs ./train, torch and transformers.
"""
import argparse
import json
import os
import subprocess
import sys

import torch
from transformers import LlamaForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from check_chat import read_part  # noqa: E402


def train(options, name, *settings):
    """Runs ./train; returns its log's records."""
    out = f"{options.out}/{name}"
    subprocess.run([os.environ.get("TRAIN", "./train"), "configs/finetune.json",
                    f"model={options.model}", f"data.train={options.dataset}/train-*.bin",
                    "data.val=", f"output.dir={out}", "backend.device=cpu",
                    "train.save_interval=-1", "train.sample_interval=0",
                    "optimizer.warmup_steps=0", *options.settings, *settings],
                   check=True, stdout=subprocess.DEVNULL)
    with open(f"{out}/log.jsonl", encoding="utf-8") as log:
        return [json.loads(line) for line in log]


def windows_of_an_epoch(options):
    start = train(options, "count", "train.steps=1", "train.batch_size=1")[0]
    return round(1 / start["data"]["epochs"])


def step_of(model, optimizer, conversations, record, clip):
    """A step over all conversations; its loss and gradient norm before clipping."""
    total = sum(sum(mask[1:]) for _, mask in conversations)
    loss = 0.0
    for ids, mask in conversations:
        rows = torch.tensor([ids])
        labels = torch.tensor([[i if counts else -100 for i, counts in zip(ids, mask)]])
        logits = model(input_ids=rows).logits[0, :-1]
        part = torch.nn.functional.cross_entropy(logits, labels[0, 1:], ignore_index=-100,
                                                 reduction="sum") / total
        part.backward()
        loss += part.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")).item()
    for group in optimizer.param_groups:
        group["lr"] = record["lr"]
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_intermixed_args()
    windows = windows_of_an_epoch(options)
    parts = 2 if windows % 2 == 0 else 1
    log = train(options, "ours", f"train.steps={options.steps}",
                f"train.batch_size={windows // parts}", f"train.gradient_accumulation={parts}")
    config = log[0]["config"]
    records = [record for record in log if record["kind"] == "train"]
    conversations = read_part(options.dataset, "train")
    longest = max(len(ids) for ids, _ in conversations)
    if longest > config["train"]["sequence_length"]:
        sys.exit(f"finetune.py: a conversation has {longest} tokens, more than a window")

    folder = options.model
    if os.path.exists(f"{folder}/latest"):
        folder = f"{folder}/latest"
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    o = config["optimizer"]
    groups = [{"params": [w for w in model.parameters() if w.dim() >= 2],
               "weight_decay": o["weight_decay"]},
              {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1, betas=(o["beta1"], o["beta2"]), eps=o["eps"])
    print(f"{len(conversations)} conversations in {windows} windows, {parts} micro-batches, "
          f"{sum(sum(mask) for _, mask in conversations)} tokens count")
    worst = [0.0, 0.0]
    for record in records:
        loss, norm = step_of(model, optimizer, conversations, record, o["clip_norm"])
        worst[0] = max(worst[0], abs(loss - record["loss"]))
        worst[1] = max(worst[1], abs(norm / record["grad_norm"] - 1))
        print(f"step {record['step']:3d} | ours {record['loss']:.7f} {record['grad_norm']:.6f} | "
              f"transformers {loss:.7f} {norm:.6f}", flush=True)
    print(f"largest difference: {worst[0]:.2g} of the loss, {worst[1]:.2g} of the norm, relative")
    return worst[0] > 1e-5  # observed: 5e-7 in 20 steps


if __name__ == "__main__":
    sys.exit(main())
