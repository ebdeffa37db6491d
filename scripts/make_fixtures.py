#!/usr/bin/env python3
"""Writes tests/fixtures/: small random LLaMA models and what Hugging Face transformers computes with them.

usage: scripts/make_fixtures.py [FOLDER]        (needs: pip install -r scripts/requirements.txt)

A fixture is a folder with
  config.json           as transformers writes it
  model.safetensors     fp32 weights, as transformers writes them
  expected.safetensors  input_ids, targets  [B, T] I32; a target of -1 does not count
                        lengths             [n] I32, where windows hold several documents: rows of each, in their order
                        logits              [B, T, V]
                        loss                [1]  mean cross entropy of logits against targets, nats
                        grad.NAME           gradient of loss, for every parameter of model.safetensors
                        losses5             [5]  loss before each of 5 AdamW steps on the same batch
                        grad_norms5         [5]  L2 norm of all gradients before clipping, same steps
                        step5.NAME          weights after the 5 steps
  muon.safetensors      losses5, grad_norms5, step5.NAME of 5 other steps, in which torch.optim.Muon updates the
                        matrices of layers, by our polynomials; in fixtures of MORE_STEPS
  rates.safetensors     the same of 5 steps of AdamW in which norm weights have NORM_RATE times
                        the learning rate

Everything expected is computed in fp64 from the fp32 weights and rounded to fp32 once, when it is saved: so a test that
compares against it measures the error of the program under test alone. transformers casts to fp32 inside RMSNorm, RoPE
and softmax; `casts_lifted` turns those casts into casts to fp64 and leaves its code as it is. That the result is still
the library's model is checked against an untouched fp32 run, here, for every fixture.

The same versions of torch and transformers give the same bytes.
"""
import contextlib
import pathlib
import sys
from unittest import mock

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

STEPS = 5
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
EPS = 1e-4  # large: it shows where it is added, and rounding cannot turn a gradient near 0 into a whole step
WEIGHT_DECAY = 0.1  # on matrices only
CLIP_NORM = 1.0
MOMENTUM = 0.95  # Muon's
# Of Newton-Schulz' steps, a X + (b A + c A A) X with A = X X^T, as kernels/operand.h has them.
POLYNOMIALS = ((7.8827, -21.7331, 15.0505), (3.7806, -2.9184, 0.5752), (3.2660, -2.7015, 0.6181),
               (2.6260, -2.2348, 0.6395))
NORM_RATE = 3.0

# name: (seed, B, T, standard deviation of the weights, LlamaConfig's arguments)
FIXTURES = {
    "gqa_untied": (1, 2, 16, 0.2, dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Sizes that are no power of two, and an eps large enough to show where it is added.
    "mha_tied": (2, 2, 7, 0.25, dict(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
        vocab_size=37, max_position_embeddings=16, rms_norm_eps=1e-2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0})),
    # Wavelengths 6.3, 30, 140, 664 against the limits 32 / 4 and 32 / 1: one pair is left alone, one is blended and two
    # are stretched by the factor.
    "llama3_rope": (3, 2, 64, 0.15, dict(
        hidden_size=48, intermediate_size=32, num_hidden_layers=1, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=32, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32})),
    # All wavelengths are four times as long: 25, 79, 251, 795.
    "linear_rope": (9, 2, 40, 0.15, dict(
        hidden_size=24, intermediate_size=20, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1,
        vocab_size=24, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0})),
    # 4 heads of 16 in a model of width 32, and 20 = 8 + 8 + 4 features in the MLP. The gradient norm falls from above
    # the clip to below it.
    "wide_heads": (4, 4, 31, 0.1, dict(
        hidden_size=32, intermediate_size=20, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, vocab_size=29, max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    # Windows of documents (DOCUMENTS), a third of whose targets do not count.
    "documents": (8, 2, 24, 0.1, dict(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=40, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0})),
}
# Among their parts are some with fewer rows than columns, as many, and more; one has tied embeddings.
MORE_STEPS = {"gqa_untied": ("muon", "rates"), "mha_tied": ("muon",), "wide_heads": ("muon",)}
DOCUMENTS = {"documents": [[1, 9, 2, 11, 1], [20, 4]]}  # rows of each window's documents


@contextlib.contextmanager
def casts_lifted():
    """Inside, what transformers calls fp32 is fp64."""
    with mock.patch.object(torch, "float32", torch.float64), mock.patch.object(torch, "float", torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def orthogonalized(update, _coefficients, _steps, eps):
    """In place of torch.optim.Muon's function, which has one polynomial and computes in bf16."""
    update = update / update.norm().clamp(min=eps)
    for a, b, c in POLYNOMIALS:
        gram = update @ update.T
        update = a * update + (b * gram + c * gram @ gram) @ update
    return update


def random_model(config, seed, std):
    """fp32 model; weights normal(0, std), norm weights normal(1, 0.2): nothing that a wrong use of it would leave alone."""
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * values if parameter.dim() == 1 else std * values)
    return model


def seen(windows, dtype):
    """What transformers needs to see documents apart: a causal mask of blocks, and positions that start with each."""
    if windows is None:
        return {}
    length = sum(windows[0])
    mask = torch.full((len(windows), 1, length, length), torch.finfo(dtype).min, dtype=dtype)
    positions = torch.cat([torch.arange(rows) for documents in windows for rows in documents]).reshape(-1, length)
    for window, documents in enumerate(windows):
        first = 0
        for rows in documents:
            block = mask[window, 0, first:first + rows, first:first + rows]
            block.copy_(torch.triu(block, diagonal=1))
            first += rows
    return {"attention_mask": mask, "position_ids": positions}


def logits_and_loss(model, input_ids, targets, windows):
    logits = model(input_ids=input_ids, use_cache=False, **seen(windows, next(model.parameters()).dtype)).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def gradients(model, input_ids, targets, windows):
    model.zero_grad(set_to_none=True)
    logits, loss = logits_and_loss(model, input_ids, targets, windows)
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def train(model, input_ids, targets, windows, steps):
    """STEPS steps on one batch, as the file `steps` has them: losses, gradient norms, weights."""
    muon, norm_rate = steps == "muon", NORM_RATE if steps == "rates" else 1.0
    parameters = list(model.parameters())
    by_muon = [p for p in model.model.layers.parameters() if p.dim() >= 2] if muon else []
    others = [p for p in parameters if all(p is not q for q in by_muon)]
    optimizers = [torch.optim.AdamW(
        [{"params": [p for p in others if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0,
          "lr": LEARNING_RATE * norm_rate}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPS)]
    if muon:
        optimizers.append(torch.optim.Muon(by_muon, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM,
                                           adjust_lr_fn="match_rms_adamw"))
    losses, norms = [], []
    for _ in range(STEPS):
        _, loss, grads = gradients(model, input_ids, targets, windows)
        norm = torch.sqrt(sum(g.square().sum() for g in grads.values()))
        # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6; the trainer divides by norm.
        for p in parameters:
            p.grad.mul_(min(1.0, CLIP_NORM / norm.item()))
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss)
        norms.append(norm)
    return {"losses5": torch.stack(losses), "grad_norms5": torch.stack(norms)} | {
        f"step5.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def relative_error(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


def save(tensors, path):
    save_file({name: (t if t.dtype == torch.int32 else t.to(torch.float32)).contiguous()
               for name, t in tensors.items()}, path)


def make_fixture(folder, seed, batch, length, std, arguments, windows, more_steps):
    """more_steps: names of files of steps beside those of AdamW in expected.safetensors."""
    config = LlamaConfig(initializer_range=std, bos_token_id=0, eos_token_id=1, attn_implementation="eager",
                         **arguments)
    plain = random_model(config, seed, std)
    plain.save_pretrained(folder)
    (folder / "generation_config.json").unlink()

    generator = torch.Generator().manual_seed(seed + 1000)
    input_ids, targets = torch.randint(config.vocab_size, (2, batch, length), generator=generator)
    if windows is not None:
        targets[torch.rand(targets.shape, generator=generator) < 1 / 3] = -1
    expected = {"input_ids": input_ids.to(torch.int32), "targets": targets.to(torch.int32)}
    if windows is not None:
        expected["lengths"] = torch.tensor([rows for documents in windows for rows in documents], dtype=torch.int32)
    trained = {}
    polynomials = mock.patch("torch.optim._muon._zeropower_via_newtonschulz", orthogonalized)
    with casts_lifted(), polynomials:
        for steps in ("expected", *more_steps):
            model = LlamaForCausalLM(config).double()
            model.load_state_dict(plain.state_dict())
            assert model.model.rotary_emb.inv_freq.dtype == torch.float64
            logits, loss, grads = gradients(model, input_ids, targets, windows)
            trained[steps] = train(model, input_ids, targets, windows, steps)
    expected |= {"logits": logits, "loss": loss.reshape(1)}
    expected |= {f"grad.{name}": grad for name, grad in grads.items()}
    expected |= trained["expected"]

    plain_logits, _, plain_grads = gradients(plain, input_ids, targets, windows)
    worst = max([relative_error(plain_logits, logits)] + [relative_error(plain_grads[n], g) for n, g in grads.items()])
    assert worst <= 1e-5, f"{folder.name}: fp64 and untouched fp32 transformers differ by {worst:.1e}"

    save(expected, folder / "expected.safetensors")
    for steps in more_steps:
        save(trained[steps], folder / f"{steps}.safetensors")
    losses, norms = expected["losses5"], expected["grad_norms5"]
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size / 1024:.0f} KiB, loss {losses[0]:.4f} .. {losses[-1]:.4f}, "
          f"gradient norm {norms[0]:.3f} .. {norms[-1]:.3f}, "
          f"untouched fp32 differs by {worst:.1e} (bound 1e-5)")


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "tests/fixtures"
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, (seed, batch, length, std, arguments) in FIXTURES.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        make_fixture(folder, seed, batch, length, std, arguments, DOCUMENTS.get(name),
                     MORE_STEPS.get(name, ()))


if __name__ == "__main__":
    main()
