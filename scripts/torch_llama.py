#!/usr/bin/env python3
"""Trains in PyTorch what ./train would train, to compare loss and speed: same config, tokens, steps and log.

usage: scripts/torch_llama.py PEER CONFIG.json [section.key=value ...]

PEER is words joined by '+':
  eager     PyTorch as it is
  compile   torch.compile
  graphs    torch.compile with CUDA graphs, mode reduce-overhead
  amp       autocast to bf16; weights and moments are fp32, as in ./train. Without it both are bf16 on a GPU, and a CPU
            computes in fp32
  liger     Liger's kernels for RMSNorm, RoPE, SwiGLU and the loss

`./train --plan` resolves the config, so its defaults are ours: schedule, order of the windows, validations.
backend.device=cpu tries it on the CPU; backend.precision=fp8 has torchao's tensorwise float8 in every linear layer but
the output layer; optimizer.kind=muon is torch.optim.Muon for the matrices of the layers, AdamW for the rest. With
data.documents=join and train.init_from=FOLDER (a Hugging Face folder) the losses are ours. Steps go to
output.dir/log.jsonl. Needs torch 2.7 or later (Muon 2.9), and torchao or liger-kernel where asked for.
"""
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS = "eager", "compile", "graphs", "amp", "liger"


def fail(sentence):
    sys.exit(f"torch_llama.py: {sentence}")


if sys.argv[1:] in (["-h"], ["--help"]):  # before torch is asked for
    print(__doc__.strip())
    sys.exit()


def need(module, package):
    fail(f"{module} is not installed; install it with: pip install {package}")


try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from token_windows import Windows
except ImportError as missing:
    need(missing.name, "torch numpy")


class Liger:
    """Liger's kernels in the place of this file's operations."""

    def __init__(self):
        try:
            from liger_kernel.ops import LigerSiLUMulFunction
            from liger_kernel.transformers import (LigerFusedLinearCrossEntropyLoss, LigerRMSNorm,
                                                   liger_rotary_pos_emb)
        except ImportError as missing:
            need(missing.name, "liger-kernel")
        self.norm, self.rotate, self.swiglu = LigerRMSNorm, liger_rotary_pos_emb, LigerSiLUMulFunction.apply
        self.cross_entropy = LigerFusedLinearCrossEntropyLoss()

    def loss(self, head, x, targets):
        return self.cross_entropy(head.weight, x.flatten(0, 1), targets.flatten())


class Plain:
    """What torch.compile fuses by itself."""
    norm = nn.RMSNorm

    @staticmethod
    def rotate(q, k, cosine, sine):
        def one(t):
            first, second = t.chunk(2, -1)
            return t * cosine + torch.cat((-second, first), -1) * sine

        return one(q), one(k)

    @staticmethod
    def swiglu(gate, up):
        return F.silu(gate) * up

    @staticmethod
    def loss(head, x, targets):
        return F.cross_entropy(head(x).flatten(0, 1).float(), targets.flatten())


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Apart(nn.Module):
    """Matrices that multiply the same input as one, each a parameter of its own, as Muon wants them."""

    def __init__(self, inputs, *outputs):
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(count, inputs) for count in outputs)

    def forward(self, x):
        return F.linear(x, torch.cat([weight.to(x.dtype) for weight in self.weights]))


class Block(nn.Module):
    """A layer; m is the config's section model. apart: Muon trains it."""

    def __init__(self, m, ops, apart):
        super().__init__()

        def together(inputs, *outputs):
            return Apart(inputs, *outputs) if apart else linear(inputs, sum(outputs))

        width, inner, self.ops = m["hidden_size"], m["intermediate_size"], ops
        self.head_dim = m.get("head_dim") or width // m["num_attention_heads"]
        kv_heads = m.get("num_key_value_heads") or m["num_attention_heads"]
        self.heads = m["num_attention_heads"], kv_heads, kv_heads
        self.attention_norm = ops.norm(width, eps=m["rms_norm_eps"])
        self.mlp_norm = ops.norm(width, eps=m["rms_norm_eps"])
        self.qkv = together(width, *(heads * self.head_dim for heads in self.heads))
        self.out = linear(self.heads[0] * self.head_dim, width)
        self.gate_up = together(width, inner, inner)
        self.down = linear(inner, width)

    def forward(self, x, cosine, sine):
        packed = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = packed.split(self.heads, 1)
        q, k = self.ops.rotate(q, k, cosine, sine)
        grouped = self.heads[0] != self.heads[1]
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(self.ops.swiglu(gate, up))


class Llama(nn.Module):
    def __init__(self, m, length, dtype, ops, apart, zero_init):
        super().__init__()
        self.ops, self.dtype = ops, dtype
        self.embedding = nn.Embedding(m["vocab_size"], m["hidden_size"])
        self.layers = nn.ModuleList(Block(m, ops, apart) for _ in range(m["num_hidden_layers"]))
        self.norm = ops.norm(m["hidden_size"], eps=m["rms_norm_eps"])
        self.lm_head = linear(m["hidden_size"], m["vocab_size"])
        if m["tie_word_embeddings"]:
            self.lm_head.weight = self.embedding.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                output = name.endswith((".out.weight", ".down.weight"))
                nn.init.normal_(weight, std=0 if zero_init and output else m["initializer_range"])
        angle = rope_angles(m, self.layers[0].head_dim, length)
        self.register_buffer("cosine", angle.cos()[None].to(dtype), persistent=False)
        self.register_buffer("sine", angle.sin()[None].to(dtype), persistent=False)

    def forward(self, tokens, targets):
        """Token ids, int64 [B, T] each: the mean loss."""
        x, length = self.embedding(tokens).to(self.dtype), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cosine[:, :length], self.sine[:, :length])
        return self.ops.loss(self.lm_head, self.norm(x), targets)


def rope_angles(m, head_dim, length):
    """The rotation at each position, [length, head_dim]: both halves of a head turn alike."""
    frequency = m["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    scaling = m.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling["factor"])
    return torch.outer(torch.arange(length, dtype=torch.float64), frequency).repeat(1, 2)


def load(model, folder):
    """Takes the weights of a Hugging Face folder; those that lie packed here are put together."""
    from safetensors.torch import load_file
    theirs = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        theirs.update(load_file(path))
    if not theirs:
        fail(f"{folder} holds no model*.safetensors")

    def take(module, *names):
        for name in names:
            if f"{name}.weight" not in theirs:
                fail(f"{folder} has no tensor {name}.weight")
        packed = torch.cat([theirs[f"{name}.weight"] for name in names])
        weights = list(module.parameters())
        rows = [len(weight) for weight in weights]
        shape = [sum(rows), *weights[0].shape[1:]]
        if list(packed.shape) != shape:
            fail(f"{folder}: {names[0]} is {list(packed.shape)}, and the config says {shape}")
        for weight, part in zip(weights, packed.split(rows)):
            weight.data.copy_(part)

    take(model.embedding, "model.embed_tokens")
    take(model.norm, "model.norm")
    if model.lm_head.weight is not model.embedding.weight:
        take(model.lm_head, "lm_head")
    for number, layer in enumerate(model.layers):
        at, mlp = f"model.layers.{number}.", f"model.layers.{number}.mlp."
        take(layer.attention_norm, at + "input_layernorm")
        take(layer.mlp_norm, at + "post_attention_layernorm")
        take(layer.qkv, *(f"{at}self_attn.{one}_proj" for one in "qkv"))
        take(layer.out, at + "self_attn.o_proj")
        take(layer.gate_up, mlp + "gate_proj", mlp + "up_proj")
        take(layer.down, mlp + "down_proj")


def learning_rate(o, step, steps):
    """model/optimizer.c."""
    warmup, decay = o["warmup_steps"], o["decay_steps"] if o["schedule"] == "wsd" else 0
    if warmup + decay > steps:
        warmup, decay = min(warmup, steps // 10 + 1), min(decay, steps // 5 + 1)
    lowest, above = o["min_learning_rate"], o["learning_rate"] - o["min_learning_rate"]
    if step < warmup:
        return o["learning_rate"] * (step + 1) / warmup
    if o["schedule"] == "linear":
        decay = steps - warmup
    if o["schedule"] == "cosine":
        return lowest + above * 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / max(1, steps - warmup))))
    return lowest + above * (steps - step) / decay if steps - step < decay else o["learning_rate"]


def muon_momentum(o, step, steps):
    """model/optimizer.c."""
    warmup, first = min(o["momentum_warmup"], steps // 3), min(0.85, o["momentum"])
    return first + (o["momentum"] - first) * step / warmup if step < warmup else o["momentum"]


def context(t, step):
    """The tokens that attention sees together, and the steps of each length: model/spec.c."""
    lengths = [t["sequence_length"]]
    while t["first_context"] and len(lengths) < 7 and lengths[0] % 2 == 0 and \
            lengths[0] // 2 >= t["first_context"]:
        lengths.insert(0, lengths[0] // 2)
    shorter = len(lengths) - 1
    steps = min(t["context_warmup"], t["steps"] // 4 * 3) // shorter if shorter else 0
    return lengths[min(step // steps, shorter) if steps else -1], steps


class Trainer:
    def __init__(self, words, config):
        model, train, backend = config["model"], config["train"], config["backend"]
        self.config, self.cuda = config, backend["device"] != "cpu"
        if self.cuda and not torch.cuda.is_available():
            fail("there is no GPU that torch can use; backend.device=cpu tries it on the CPU")
        if "liger" in words and not self.cuda:
            fail("Liger's kernels run on a GPU only")
        if backend["threads"]:
            torch.set_num_threads(backend["threads"])
        torch.manual_seed(train["seed"])
        amp, self.muon = "amp" in words, config["optimizer"].get("kind") == "muon"
        if self.muon and backend["precision"] == "fp8":
            fail("with Muon q, k, v, gate and up are parameters of their own, which torchao does not convert; leave "
                 "backend.precision=fp8 out")
        compute = torch.bfloat16 if self.cuda or amp else torch.float32
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=amp)
        with self.device:
            llama = Llama(model, train["sequence_length"], compute, Liger() if "liger" in words else Plain, self.muon,
                          train["zero_init"])
        if train["init_from"]:
            load(llama, train["init_from"])
        llama.to(torch.float32 if amp else compute)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        if self.cuda and backend["precision"] == "fp8":
            self.to_float8(llama)
        self.weights = list(llama.parameters())
        self.optimizers = self.make_optimizers(config["optimizer"], llama)
        self.model = llama
        if "compile" in words or "graphs" in words:
            mode = "reduce-overhead" if "graphs" in words else None
            self.model = torch.compile(llama, dynamic=False, mode=mode)

    @staticmethod
    def to_float8(llama):
        try:
            from torchao.float8 import convert_to_float8_training
        except ImportError as missing:
            need(missing.name, "torchao")
        convert_to_float8_training(llama, module_filter_fn=lambda _, name: name != "lm_head")

    def make_optimizers(self, o, llama):
        """Matrices decay, norms do not."""
        matrices = [w for w in llama.layers.parameters() if w.dim() >= 2] if self.muon else []
        taken = set(matrices)
        rest = [w for w in self.weights if w not in taken]
        groups = [{"params": [w for w in rest if w.dim() >= 2], "weight_decay": o["weight_decay"]},
                  {"params": [w for w in rest if w.dim() < 2], "weight_decay": 0.0,
                   "factor": o["norm_rate"]}]
        made = [torch.optim.AdamW(groups, lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  fused=True)]
        if not self.muon:
            return made
        if not hasattr(torch.optim, "Muon"):
            fail(f"torch {torch.__version__} has no Muon; 2.9 or later has")
        made.append(torch.optim.Muon(matrices, lr=o["learning_rate"], weight_decay=o["weight_decay"],
                                     momentum=o["momentum"], adjust_lr_fn="match_rms_adamw"))
        return made

    def send(self, rows):
        return rows.contiguous().pin_memory().to(self.device, non_blocking=True) if self.cuda else rows

    def step(self, windows, number):
        """Starts a step; what it returns gives loss and gradient norm to `result` when the step is done."""
        t = self.config["train"]
        micro_batches, batch = t["gradient_accumulation"], t["batch_size"]
        total = 0
        torch.compiler.cudagraph_mark_step_begin()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                rate = learning_rate(self.config["optimizer"], number, t["steps"])
                group["lr"] = rate * group.get("factor", 1)
                if "momentum" in group:
                    group["momentum"] = muon_momentum(self.config["optimizer"], number, t["steps"])
        for micro_batch in range(micro_batches):
            first = (number * micro_batches + micro_batch) * batch
            length, steps = context(t, number)
            rows = windows.pieces(first, batch, length, steps * micro_batches * batch)
            with self.autocast:
                loss = self.model(*map(self.send, rows)) / micro_batches
            loss.backward()
            total = total + loss.detach().float()
        limit = self.config["optimizer"]["clip_norm"] or math.inf
        norm = nn.utils.clip_grad_norm_(self.weights, limit)
        for optimizer in self.optimizers:
            optimizer.step()
        on_device = torch.stack((total, norm.float()))
        if not self.cuda:
            return on_device, None
        values, done = torch.empty(2, pin_memory=True), torch.cuda.Event()
        values.copy_(on_device, non_blocking=True)
        done.record()
        return values, done

    def result(self, started):
        values, done = started
        if done:
            done.synchronize()
        return values.tolist()

    def validate(self, windows):
        """The mean loss over the windows that ./train reads (model/run/validate.c), and their tokens."""
        t = self.config["train"]
        batch, split = t["batch_size"], len(windows.places)
        read = t["eval_batches"] * batch
        if read in range(1, split):
            numbers = [k * (split // read) + split // read // 2 + (2 * k + 1) * (split % read) // (2 * read)
                       for k in range(read)]
        else:
            numbers = list(range(split))
        total = 0.0
        with torch.no_grad(), self.autocast:
            for first in range(0, len(numbers), batch):
                rows = windows.of(numbers[first:first + batch])
                total += self.model(*map(self.send, rows)).item() * len(rows[0])
        return total / len(numbers), len(numbers) * t["sequence_length"]

    def memory(self):
        """GiB: the most that tensors took of the GPU, or this process of the host."""
        if self.cuda:
            return torch.cuda.max_memory_allocated() / 2**30
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run(trainer, config):
    """Trains, validates and logs. As in ./train a GPU has its next step before the result of one is waited for."""
    ahead = int(trainer.cuda)
    train, data, folder = config["train"], config["data"], pathlib.Path(config["output"]["dir"])
    steps, interval = train["steps"], train["eval_interval"] or train["steps"]
    windows = Windows(data["train"], train["sequence_length"], train["seed"] if data["shuffle"] else None)
    held_out = Windows(data["val"], train["sequence_length"]) if data["val"] else None
    folder.mkdir(parents=True, exist_ok=True)
    tokens = train["gradient_accumulation"] * train["batch_size"] * train["sequence_length"]
    with open(folder / "log.jsonl", "w", encoding="utf-8") as log:

        def write(**record):
            log.write(json.dumps(record, separators=(",", ":")) + "\n")

        def validate(step):
            if held_out:
                loss, read = trainer.validate(held_out)
                write(kind="val", step=step, loss=loss, tokens=read)
                print(f"step {step} | validation loss {loss:.4f}", flush=True)

        validate(0)
        started, booked, due = [], time.perf_counter(), min(interval, steps)
        for step in range(1, steps + 1):
            while len(started) <= ahead and step + len(started) <= due:
                started.append(trainer.step(windows, step + len(started) - 1))
            loss, norm = trainer.result(started.pop(0))
            now = time.perf_counter()
            ms, booked = 1000 * (now - booked), now
            write(kind="train", step=step, loss=loss, lr=learning_rate(config["optimizer"], step - 1, steps),
                  grad_norm=norm, ms=ms, tokens_per_s=1000 * tokens / ms, mfu=None)
            print(f"step {step}/{steps} | loss {loss:.4f} | norm {norm:.3f} | {ms:.1f} ms", flush=True)
            if step == due:
                validate(step)
                booked, due = time.perf_counter(), min(due + interval, steps)
        write(kind="stop", step=steps, reason="done")


def resolve(arguments):
    """The config as ./train understands it."""
    train = os.environ.get("TRAIN", ROOT / "train")
    try:
        plan = subprocess.run([train, "--plan", *arguments], capture_output=True, text=True, check=False)
    except OSError:
        fail(f"there is no program '{train}', which resolves the config; build it: make all")
    if plan.returncode:
        sys.exit(plan.stderr.strip())
    return json.JSONDecoder().raw_decode(plan.stdout)[0]


def best_attention():
    backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(backends, set_priority=True)


def main():
    if len(sys.argv) < 3:
        fail("it needs a peer and a config; --help says which there are")
    words = sys.argv[1].split("+")
    for word in words:
        if word not in WORDS:
            fail(f"'{word}' is no peer; there are {' '.join(WORDS)}, joined by '+'")
    config = resolve(sys.argv[2:])
    try:
        trainer = Trainer(words, config)
        with best_attention():
            run(trainer, config)
    except torch.OutOfMemoryError:
        fail("the GPU's memory is too small for it")
    except ValueError as error:
        fail(error)
    print(f"memory     {trainer.memory():.1f} GiB, {torch.__version__} on {trainer.device}")


if __name__ == "__main__":
    main()
