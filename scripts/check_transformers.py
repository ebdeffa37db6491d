#!/usr/bin/env python3
"""Loads a checkpoint folder of ./train into Hugging Face transformers, as it is, and compares logits.

usage: scripts/check_transformers.py FOLDER --logits FILE
       scripts/check_transformers.py FOLDER --prompt-ids 1,2,3

--logits      a safetensors file with input_ids [B, T] and the logits [B, T, V] that coda.c computed for them; the exit
              status is 1 if transformers differs by more than the bound
--prompt-ids  prints what transformers finds likeliest after these tokens

Computed in fp32 by transformers, on the CPU. Needs: pip install -r scripts/requirements.txt
"""
import argparse
import pathlib
import sys

# Largest accepted difference, L2 over all logits and worst element, both relative; observed 1.3e-6.
BOUND = 1e-5


def fail(sentence):
    sys.exit(f"check_transformers.py: {sentence}")


try:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
except ImportError as error:
    fail(f"{error.name} is not installed; install it with: pip install -r scripts/requirements.txt")


def load(folder):
    """The model, with every weight taken from the folder: none may be missing, left over, or of another shape."""
    if not (folder / "config.json").is_file():
        fail(f"{folder} holds no config.json; give a checkpoint folder such as RUN/latest")
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for key in "missing_keys", "unexpected_keys", "mismatched_keys":
        if info[key]:
            fail(f"{folder}: transformers reports {key.replace('_', ' ')}: {', '.join(map(str, sorted(info[key])))}")
    return model.eval()


def logits_of(model, input_ids):
    with torch.no_grad():
        return model(input_ids=input_ids).logits


def compare(model, folder, file):
    ours = load_file(file)
    shape = [*ours["input_ids"].shape, model.config.vocab_size]
    if list(ours["logits"].shape) != shape:
        fail(f"{file}: its logits are {list(ours['logits'].shape)}, those of {folder} would be {shape}")
    expected = logits_of(model, ours["input_ids"].long())
    difference = ours["logits"] - expected
    l2 = (difference.norm() / expected.norm()).item()
    worst = (difference.abs().max() / expected.abs().max()).item()
    print(f"{folder}: logits differ from transformers' by {l2:.1e} (L2), {worst:.1e} (worst element), bound {BOUND:.0e}")
    if not max(l2, worst) <= BOUND:
        fail(f"{folder}: transformers computes other logits from this folder")


def print_likeliest(model, ids):
    if any(not 0 <= i < model.config.vocab_size for i in ids):
        fail(f"--prompt-ids: token ids are 0 to {model.config.vocab_size - 1}")
    values, tokens = logits_of(model, torch.tensor([ids]))[0, -1].topk(min(5, model.config.vocab_size))
    for value, token in zip(values.tolist(), tokens.tolist()):
        print(f"token {token:6d}  logit {value:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--logits", type=pathlib.Path)
    parser.add_argument("--prompt-ids", type=lambda text: [int(word) for word in text.split(",")])
    options = parser.parse_args()
    if not options.logits and not options.prompt_ids:
        parser.error("one of --logits and --prompt-ids is needed")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = load(options.folder)
    if options.logits:
        compare(model, options.folder, options.logits)
    if options.prompt_ids:
        print_likeliest(model, options.prompt_ids)


if __name__ == "__main__":
    main()
