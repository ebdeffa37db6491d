#!/usr/bin/env python3
"""Continues a run of ./train on several GPUs: transformers' LlamaForCausalLM under FSDP2.

usage: torchrun --nproc-per-node N scripts/fsdp.py FOLDER 'TOKENS' --out FOLDER [options]

FOLDER is a checkpoint of ./train (RUN/latest) or any Hugging Face LLaMA, TOKENS the token files of
./prepare (a glob). It prints the loss of every step as ./train does, and saves a folder that
./train takes with train.init_from=OUT or "model": "OUT". Windows come in file order, as with
data.shuffle=false, data.documents=join; batch, length and AdamW's numbers mean what they mean in a
config. Master weights, reductions and the optimizer are fp32, the layers bf16 (--fp32: all is fp32). Without a GPU
it runs on the CPU, through gloo: to try it.
"""
import argparse
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM
from transformers.utils import logging

from token_windows import Windows


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, over all GPUs")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--fp32", action="store_true")
    return parser.parse_args()


def start():
    """Where this process computes, its number, and how many there are."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    return device, dist.get_rank(), dist.get_world_size()


def load(options, device):
    """The model, its layers sharded over the processes. Every process reads all weights once."""
    model = LlamaForCausalLM.from_pretrained(options.folder, dtype=torch.float32)
    model.config.use_cache = False
    model.to(device).train()
    compute = torch.float32 if options.fp32 else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def adamw(model, options):
    """AdamW as ./train has it: matrices decay, norms do not."""
    weights = list(model.parameters())
    groups = [{"params": [w for w in weights if w.dim() >= 2], "weight_decay": options.weight_decay},
              {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, options.beta2), eps=1e-8)


def save(model, options, rank):
    """One folder with all weights in fp32, the tokenizer, and the sampling defaults."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole)
    if rank != 0:
        return
    model.config.use_cache = True
    model.save_pretrained(options.out, state_dict=weights)
    for kind in AutoTokenizer, GenerationConfig:
        try:
            kind.from_pretrained(options.folder).save_pretrained(options.out)
        except (OSError, ValueError) as error:
            print(f"fsdp.py: not carried over: {str(error).splitlines()[0]}", file=sys.stderr)


def main():
    options = parse()
    logging.disable_progress_bar()
    device, rank, world = start()
    if options.batch % world:
        sys.exit(f"fsdp.py: --batch {options.batch} cannot be shared by {world} processes")
    try:
        windows = Windows(options.tokens, options.length)
    except ValueError as error:
        sys.exit(f"fsdp.py: {error}")
    model = load(options, device)
    optimizer = adamw(model, options)
    share = options.batch // world
    for step in range(options.steps):
        began = time.perf_counter()
        inputs, targets = windows.rows(step * options.batch + rank * share, share)
        logits = model(input_ids=inputs.to(device)).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        norm = norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item()
        if rank == 0:
            ms = 1000 * (time.perf_counter() - began)
            print(f"step {step + 1:4d}/{options.steps} | loss {mean.item() / world:.4f} | "
                  f"norm {norm:.3f} | {ms:.1f} ms", flush=True)
    save(model, options, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
