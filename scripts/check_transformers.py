#!/usr/bin/env python3
"""Loads a checkpoint folder of ./train into Hugging Face transformers, as it is, and compares logits.

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
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, pipeline
    from transformers.utils import logging
except ImportError as error:
    fail(f"{error.name} is not installed; install it with: pip install -r scripts/requirements.txt")
try:
    import torch
    from safetensors.torch import load_file
except ImportError:
    torch = None


def load(folder, dtype="float32"):
    """The model, with every weight taken from the folder: none may be missing, left over, or of another shape."""
    if not torch:
        fail("torch is not installed; install it with: pip install -r scripts/requirements.txt")
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    for key in "missing_keys", "unexpected_keys", "mismatched_keys":
        if info[key]:
            fail(f"{folder}: transformers reports {key.replace('_', ' ')}: {', '.join(map(str, sorted(info[key])))}")
    return model.eval()


def compare(model, folder, file):
    ours = load_file(file)
    shape = [*ours["input_ids"].shape, model.config.vocab_size]
    if list(ours["logits"].shape) != shape:
        fail(f"{file}: its logits are {list(ours['logits'].shape)}, those of {folder} would be {shape}")
    with torch.no_grad():
        expected = model(input_ids=ours["input_ids"].long()).logits
    difference = ours["logits"] - expected
    l2 = (difference.norm() / expected.norm()).item()
    worst = (difference.abs().max() / expected.abs().max()).item()
    print(f"{folder}: logits differ from transformers' by {l2:.1e} (L2), {worst:.1e} (worst element), bound {BOUND:.0e}")
    if not max(l2, worst) <= BOUND:
        fail(f"{folder}: transformers computes other logits from this folder")


def check_tokenizer(folder, text):
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    generation = GenerationConfig.from_pretrained(folder)
    for source in config, generation:
        for name in "bos_token_id", "eos_token_id":
            ids = getattr(source, name)
            if getattr(tokenizer, name) not in (ids if isinstance(ids, list) else [ids]):
                fail(f"{folder}: {name} is {ids} in {type(source).__name__}, "
                     f"but {getattr(tokenizer, name)} in the tokenizer")
    ids = tokenizer(text)["input_ids"]
    back = tokenizer.decode(ids, skip_special_tokens=True)
    if back != text:
        fail(f"{folder}: AutoTokenizer makes '{back}' of the ids of '{text}'")
    if max(ids) >= config.vocab_size:
        fail(f"{folder}: a token id is {max(ids)}, but the model knows {config.vocab_size}")
    print("ids", *ids)


def check_rounded(folder, exact):
    rounded, masters = load(folder, "auto").state_dict(), load(exact, "auto").state_dict()
    for name, value in rounded.items():
        if not torch.equal(value, masters[name].to(value.dtype)):
            fail(f"{folder}: {name} is not that of {exact}, rounded")
    print(f"{folder}: {len(rounded)} tensors in {value.dtype} are those of {exact}, rounded")


def rewrite(folder, out, dtype):
    load(folder, dtype).save_pretrained(out, max_shard_size="20KB")
    AutoTokenizer.from_pretrained(folder).save_pretrained(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--logits", metavar="FILE", help="a safetensors file with input_ids [B, T], and the logits "
                        "[B, T, V] that coda.c computed; fails if transformers differs by more than the bound")
    parser.add_argument("--tokenizer", metavar="TEXT", help="AutoTokenizer and AutoConfig agree on bos and eos; the text "
                        "comes back from its ids, which are printed. Needs no torch")
    parser.add_argument("--pipeline", metavar="TEXT", help="prints what the pipeline text-generation writes after the "
                        "text, always the likeliest token")
    parser.add_argument("--rounded", metavar="FOLDER", help="every weight of that checkpoint, rounded, is this one's")
    parser.add_argument("--rewrite", metavar="FOLDER", help="writes model and tokenizer by save_pretrained, in --dtype "
                        "and in shards of 20 kB: for coda.c to start from")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    if not (options.folder / "config.json").is_file():
        fail(f"{options.folder} holds no config.json; give a checkpoint folder such as RUN/latest")
    logging.disable_progress_bar()
    if options.tokenizer:
        check_tokenizer(options.folder, options.tokenizer)
    if options.logits:
        compare(load(options.folder), options.folder, options.logits)
    if options.pipeline:
        write = pipeline("text-generation", model=str(options.folder), dtype="float32", device="cpu")
        print(write(options.pipeline, do_sample=False, max_new_tokens=24)[0]["generated_text"])
    if options.rounded:
        check_rounded(options.folder, options.rounded)
    if options.rewrite:
        rewrite(options.folder, options.rewrite, options.dtype)


if __name__ == "__main__":
    main()
