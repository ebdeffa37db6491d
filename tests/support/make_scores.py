#!/usr/bin/env python3
"""Writes what lm-evaluation-harness, and nanochat's rule for CORE, score on tests/fixtures/scores.

usage: tests/support/make_scores.py     (needs: pip install 'lm_eval[hf]', here 0.4.13)

The .jsonl files there, and the bundle of CORE's form in core/, have a few invented examples of each
task, and are not touched. Written are
  model/          config.json and model.safetensors of a small random LLaMA, with more rows of
                  logits than a tokenizer has tokens
  TOKENIZER/      tokenizer.json and tokenizer_config.json: gpt2, byte level, without BOS; llama2,
                  Metaspace, and llama3, byte level, both with BOS in the post-processor
  expected.json   of each tokenizer and task the sums, the decisions and the results
lm-evaluation-harness' own task files are taken, with the data files in place of the Hub's.
"""

import json
import pathlib
import random
import shutil
import tempfile

import lm_eval
import torch
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).parents[1] / "fixtures"
SCORES = ROOT / "scores"
HARNESS = pathlib.Path(lm_eval.__file__).parent / "tasks"
POSITIONS = 256
SPECIAL = {  # of tokenizer_config.json
    "gpt2": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    "llama2": {"bos_token": "<s>", "eos_token": "</s>"},
    "llama3": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
}
# name here: (the harness' file, examples in front)
TASKS = {
    "hellaswag": ("hellaswag/hellaswag.yaml", 0),
    "piqa": ("piqa/piqa.yaml", 0),
    "arc_easy": ("arc/arc_easy.yaml", 0),
    "arc_challenge": ("arc/arc_challenge.yaml", 0),
    "openbookqa": ("openbookqa/openbookqa.yaml", 0),
    "winogrande": ("winogrande/default.yaml", 0),
    "lambada_openai": ("lambada/lambada_openai.yaml", 0),
    "blimp": ("blimp/adjunct_island.yaml", 0),
    "boolq": ("super_glue/boolq/default.yaml", 0),
    "sciq": ("sciq/sciq.yaml", 0),
    "mmlu anatomy": ("mmlu/default/mmlu_anatomy.yaml", 0),
    "mmlu elementary_mathematics": ("mmlu/default/mmlu_elementary_mathematics.yaml", 0),
    "mmlu5 anatomy": ("mmlu/default/mmlu_anatomy.yaml", 5),
    "mmlu5 elementary_mathematics": ("mmlu/default/mmlu_elementary_mathematics.yaml", 5),
}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


# ---- The model and its tokenizers


def make_model():
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=480,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.25)
            else:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(SCORES / "model")
    (SCORES / "model" / "generation_config.json").unlink()


def make_tokenizer(name):
    folder = SCORES / name
    folder.mkdir(exist_ok=True)
    tree = json.loads((ROOT / "tokenizers" / name / "tokenizer.json").read_text(encoding="utf-8"))
    if not tree["added_tokens"]:
        for i, token in enumerate(("<|begin|>", "<|end|>")):
            tree["added_tokens"].append(
                {
                    "id": len(tree["model"]["vocab"]) + i,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
            )
    write(folder / "tokenizer.json", tree)
    write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL[name]},
    )


# ---- lm-evaluation-harness


def write_task(folder, name, task_file):
    task, _, subject = name.partition(" ")
    data = {}
    for split, file in (("test", task.rstrip("5")), ("dev", task.rstrip("5") + "-dev")):
        if not (SCORES / f"{file}.jsonl").exists():
            continue
        rows = [
            r for r in lines(SCORES / f"{file}.jsonl") if not subject or r["subject"] == subject
        ]
        path = folder / f"{name.replace(' ', '_')}-{split}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        data[split] = str(path)
    shots = "fewshot_split: dev\n" if "dev" in data else ""
    name = name.replace(" ", "_")
    (folder / f"{name}.yaml").write_text(
        f"include: {HARNESS / task_file}\ntask: made_{name}\ntag: null\n"
        f"dataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {{data_files: {json.dumps(data)}}}\n"
        f"training_split: null\nvalidation_split: null\n"
        f"test_split: test\n{shots}"
    )


def harness(folder, pretrained):
    """Of each task {"sums", "greedy", metrics}; of mmlu's subjects in the order of its file."""
    found = {}
    for shots in (0, 5):
        names = [n for n in TASKS if TASKS[n][1] == shots]
        made = lm_eval.simple_evaluate(
            model="hf",
            model_args=f"pretrained={pretrained},dtype=float32",
            device="cpu",
            batch_size=1,
            tasks=["made_" + n.replace(" ", "_") for n in names],
            num_fewshot=shots,
            task_manager=TaskManager(include_path=str(folder)),
            log_samples=True,
            bootstrap_iters=1000,
        )
        for name in names:
            key = "made_" + name.replace(" ", "_")
            samples = sorted(made["samples"][key], key=lambda s: s["doc_id"])
            results = made["results"][key]
            found[name] = {
                "sums": [
                    (
                        [float(str(r[0])) for r in s["filtered_resps"]]
                        if isinstance(s["filtered_resps"][0], (list, tuple))
                        else [float(str(s["filtered_resps"][0]))]
                    )
                    for s in samples
                ],
                "greedy": [[str(r[1]) == "True" for r in s["filtered_resps"]] for s in samples],
                "acc": [s["acc"] for s in samples],
                **(
                    {"acc_norm": [s["acc_norm"] for s in samples]}
                    if "acc_norm" in samples[0]
                    else {}
                ),
                "results": {
                    k.split(",")[0]: v
                    for k, v in results.items()
                    if k.endswith(",none") and isinstance(v, float)
                },
            }
    for task in ("mmlu", "mmlu5"):
        parts = {
            k: iter(zip(v["sums"], v["greedy"], v["acc"]))
            for k, v in found.items()
            if k.split()[0] == task
        }
        rows = [next(parts[f"{task} {r['subject']}"]) for r in lines(SCORES / "mmlu.jsonl")]
        found[task] = {
            "sums": [r[0] for r in rows],
            "greedy": [r[1] for r in rows],
            "acc": [r[2] for r in rows],
            "results": {"acc": sum(r[2] for r in rows) / len(rows)},
        }
        for key in parts:
            del found[key]
    return found


# ---- CORE, by nanochat's rule


def prompts_of(row, kind, between, examples):
    trim = (lambda t: t.strip()) if kind == "say" else (lambda t: t)
    front = ""
    for e in examples:
        if kind == "choice":
            front += e["query"] + between + e["choices"][e["gold"]] + "\n\n"
        elif kind == "schema":
            front += e["context_options"][e["gold"]] + between + e["continuation"] + "\n\n"
        else:
            front += trim(e["context"]) + between + e["continuation"] + "\n\n"
    if kind == "choice":
        return [front + row["query"] + between + c for c in row["choices"]]
    if kind == "schema":
        return [front + c + between + row["continuation"] for c in row["context_options"]]
    return [
        (front + trim(row["context"]) + between).strip(),
        front + trim(row["context"]) + between + row["continuation"],
    ]


def same(lists, backwards):
    step = (lambda t: t[::-1]) if backwards else (lambda t: t)
    count = 0
    for tokens in zip(*(step(t) for t in lists)):
        if len(set(tokens)) > 1:
            break
        count += 1
    return count


def core(tokenizer, model):
    first = tokenizer.bos_token_id
    found = {}
    for kind, shots, between, chance in (
        ("choice", 3, " ", 0.33),
        ("schema", 1, " ", 0.5),
        ("say", 2, "\nAnswer: ", 0),
    ):
        rows = lines(SCORES / "core" / "eval_data" / "made" / f"{kind}.jsonl")
        numbered = list(enumerate(rows, 1))
        random.Random(1337).shuffle(numbered)
        sums, correct, order = [], [], []
        for at, (number, row) in enumerate(numbered):
            others = [i for i in range(len(rows)) if i != at]
            examples = [numbered[i][1] for i in random.Random(1234 + at).sample(others, shots)]
            ids = [
                [first] + tokenizer.encode(p, add_special_tokens=False)
                for p in prompts_of(row, kind, between, examples)
            ]
            if kind == "choice":
                starts = [same(ids, False)] * len(ids)
            elif kind == "schema":
                starts = [len(t) - same(ids, True) for t in ids]
            else:
                assert ids[1][: len(ids[0])] == ids[0]
                starts, ids = [len(ids[0])], [ids[1]]
            losses = []
            for tokens, start in zip(ids, starts):
                start -= max(0, len(tokens) - POSITIONS)
                tokens = torch.tensor([tokens[-POSITIONS:]])
                with torch.no_grad():
                    logits = model(tokens).logits[0]
                loss = torch.nn.functional.cross_entropy(
                    logits[:-1], tokens[0, 1:], reduction="none"
                )[start - 1 :]
                losses.append(loss)
                greedy = bool((logits[start - 1 : -1].argmax(-1) == tokens[0, start:]).all())
            means = [float(l.mean()) for l in losses]
            sums.append([-float(l.double().sum()) for l in losses])
            correct.append(
                float(greedy if kind == "say" else means.index(min(means)) == row["gold"])
            )
            order.append(number)
        acc = sum(correct) / len(correct)
        found[f"core/{kind}_task"] = {
            "sums": sums,
            "lines": order,
            "acc": correct,
            "results": {"acc": acc, "centered": (acc - chance) / (1 - chance)},
        }
    return found


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def main():
    torch.set_num_threads(1)
    make_model()
    expected = {}
    with tempfile.TemporaryDirectory() as temporary:
        temporary = pathlib.Path(temporary)
        for name, (task_file, _) in TASKS.items():
            write_task(temporary, name, task_file)
        for name in SPECIAL:
            make_tokenizer(name)
            pretrained = temporary / name
            shutil.copytree(SCORES / "model", pretrained)
            for file in (SCORES / name).iterdir():
                shutil.copy(file, pretrained)
            tokenizer = AutoTokenizer.from_pretrained(pretrained)
            model = LlamaForCausalLM.from_pretrained(pretrained, dtype=torch.float32)
            expected[name] = {**harness(temporary, pretrained), **core(tokenizer, model)}
    text = json.dumps(rounded(expected), indent=1)
    (SCORES / "expected.json").write_text(
        text.replace("\n    ", " ").replace("\n   ]", " ]") + "\n"
    )


if __name__ == "__main__":
    main()
