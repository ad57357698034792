"""Plans and measures strategies side by side; called by bench/prediction."""

import csv
import json
import os
import statistics
import subprocess
import sys

WORK = "build/prediction"
FORESAIL = "build/release/foresail"
SECONDS = float(sys.argv[1])

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
MODELS = {
    "small": {**LLAMA, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
              "intermediate_size": 704, "max_position_embeddings": 256},
    "medium": {**LLAMA, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
               "intermediate_size": 1024, "max_position_embeddings": 256},
    "unnamed": {**LLAMA, "hidden_size": 320, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
                "intermediate_size": 896, "max_position_embeddings": 256},
}
NAMED = ["small", "medium"]
STRATEGIES = [f"{mesh},micro_batch={micro},recompute={recompute}"
              for mesh in ("dp=1,tp=1,pp=1", "dp=2,tp=1,pp=1", "dp=1,tp=2,pp=1", "dp=1,tp=1,pp=2")
              for micro, recompute in ((1, "none"), (2, "none"), (4, "none"), (2, "full"))]
BATCH = 8


def run(*arguments, accept=(0,)):
    done = subprocess.run([FORESAIL, *arguments], capture_output=True, text=True)
    if done.returncode not in accept:
        sys.exit(f"foresail {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    result = [0.0] * len(values)
    for position, index in enumerate(order):
        result[index] = position
    return result


def spearman(a, b):
    x, y = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    return sum((p - mean) * (q - mean) for p, q in zip(x, y)) / sum((p - mean) ** 2 for p in x)


def prepare():
    os.makedirs(WORK, exist_ok=True)
    for name, config in MODELS.items():
        os.makedirs(f"{WORK}/{name}", exist_ok=True)
        with open(f"{WORK}/{name}/config.json", "w") as file:
            json.dump(config, file)
    if not os.path.exists(f"{WORK}/kjv.dataset.json"):
        with open(f"{WORK}/kjv.txt", "w") as file:
            subprocess.run(["scripts/kjv_text"], stdout=file, check=True)
        run("data", "prepare", f"{WORK}/kjv.txt", "--tokenizer", "bytes", "--split", "blank-lines", "--out", f"{WORK}/kjv")
    named = [flag for name in NAMED for flag in ("--for", f"{WORK}/{name}/config.json")]
    run("profile", "--out", f"{WORK}/machine.json", "--ranks", "2", "--seq-len", "256", "--budget", "180", *named)


def measure(model, strategy):
    fields = dict(part.split("=") for part in strategy.split(","))
    devices = int(fields["dp"]) * int(fields["tp"]) * int(fields["pp"])
    plan = f"{WORK}/plan.json"
    run("plan", "--model", f"{WORK}/{model}/config.json", "--machine", f"{WORK}/machine.json", "--devices", str(devices),
        "--seq-len", "256", "--global-batch", str(BATCH), "--tokens", str(BATCH * 256 * 1000), "--fix", strategy,
        "--out", plan)
    verdict = json.loads(run("stress", plan, "--data", f"{WORK}/kjv", "--minutes", str(SECONDS / 60), "--no-drills",
                             "--json", accept=(0, 1)))
    checks = {check["name"]: check for check in verdict["checks"]}
    with open(plan) as file:
        predicted = json.load(file)["predicted"]
    return predicted, checks


def main():
    prepare()
    rows = []
    for model in MODELS:
        for strategy in STRATEGIES:
            predicted, checks = measure(model, strategy)
            step, memory = checks["step_seconds"], checks["peak_bytes"]
            error = step["predicted"] / step["measured"] - 1
            inside = predicted["step_seconds_low"] <= step["measured"] <= predicted["step_seconds_high"]
            rows.append((model, strategy, step["predicted"], step["measured"], error, inside, checks["arena_bytes"]["passed"],
                         memory["predicted"], memory["measured"]))
            print(f"{model:8} {strategy:46} predicted {step['predicted']:.4f} s  measured {step['measured']:.4f} s"
                  f"  {100 * error:+6.1f} %  {'inside' if inside else 'outside'} the 80 % interval", flush=True)
    with open(f"{WORK}/results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "strategy", "predicted_seconds", "measured_seconds", "error", "inside_interval",
                         "arena_exact", "predicted_peak_bytes", "measured_peak_bytes"])
        writer.writerows(rows)
    print(f"\n{len(rows)} strategies")
    print(f"median error          {100 * statistics.median(abs(row[4]) for row in rows):.1f} %")
    for model in MODELS:
        mine = [row for row in rows if row[0] == model]
        print(f"  {model:8} median error {100 * statistics.median(abs(row[4]) for row in mine):.1f} %, bias "
              f"{100 * statistics.mean(row[4] for row in mine):+.1f} %, Spearman "
              f"{spearman([row[2] for row in mine], [row[3] for row in mine]):.3f}")
    print(f"inside 80 % interval  {sum(row[5] for row in rows)} of {len(rows)}")
    print(f"arena exact           {sum(row[6] for row in rows)} of {len(rows)}")
    print(f"largest memory error  {max(abs(row[8] - row[7]) for row in rows) / 2**20:.1f} MiB")


main()
