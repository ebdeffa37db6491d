#!/usr/bin/env python3
"""Times a training step in PyTorch, to compare scripts/step_times.sh with.

usage: torchao_step.py [bf16] [fp8]        both by default

A LLaMA of configs/llama-3.2-1b.json's shape, 8 x 4096 random tokens: torch.compile, cuDNN
attention, bf16 weights and moments, fused AdamW, the gradient norm clipped. fp8 is torchao's
float8 training with tensorwise scales on every linear layer but the output layer, which it leaves
in bf16 as torchtitan does. Prints the median of 10 steps after 5, their range, and memory.
Needs torch, and torchao for fp8.
"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 16, 32, 8, 64, 128256
BATCH, LENGTH = 8, 4096


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.mlp_norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv = linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.out = linear(HEADS * HEAD_DIM, HIDDEN)
        self.gate_up = linear(HIDDEN, 2 * INTERMEDIATE)
        self.down = linear(INTERMEDIATE, HIDDEN)

    def forward(self, x, cosine, sine):
        def rotate(t):
            first, second = t.chunk(2, -1)
            return t * cosine + torch.cat((-second, first), -1) * sine

        packed = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
        q, k, v = packed.split((HEADS, KV_HEADS, KV_HEADS), 1)
        o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-5)
        self.lm_head = linear(HIDDEN, VOCAB)

    def forward(self, tokens, targets, cosine, sine):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rope_tables():
    frequency = 500000.0 ** (-torch.arange(0, HEAD_DIM, 2, device='cuda').float() / HEAD_DIM)
    angle = torch.outer(torch.arange(LENGTH, device='cuda').float(), frequency).repeat(1, 2)
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def time_steps(precision):
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    model = Llama().to('cuda', torch.bfloat16)
    if precision == 'fp8':
        from torchao.float8 import convert_to_float8_training
        convert_to_float8_training(model, module_filter_fn=lambda _, name: name != 'lm_head')
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model, dynamic=False)
    tables = rope_tables()
    milliseconds = []
    for _ in range(15):
        tokens, targets = torch.randint(VOCAB, (2, BATCH, LENGTH), device='cuda')
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            compiled(tokens, targets, *tables).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        milliseconds.append(1e3 * (time.perf_counter() - began))
    kept = sorted(milliseconds[5:])
    memory = torch.cuda.max_memory_allocated() / 1e9
    print(f'torch {torch.__version__}, {torch.cuda.get_device_name()}, {precision}: '
          f'{kept[len(kept) // 2]:.1f} ms ({kept[0]:.1f} to {kept[-1]:.1f}), {memory:.1f} GB',
          flush=True)


for wanted in sys.argv[1:] or ['bf16', 'fp8']:
    if wanted not in ('bf16', 'fp8'):
        sys.exit(f"torchao_step.py: '{wanted}' is neither bf16 nor fp8")
    time_steps(wanted)
