#!/usr/bin/python3
"""The quickstart run in PyTorch, float32: the loss curve that scripts/check_curve holds Foresail's against.

    scripts/kjv_text > build/quickstart/kjv.txt
    tests/reference/quickstart/curve.py build/quickstart/kjv.txt tests/reference/quickstart/curve.json

Needs Debian's python3-torch (1.13.1, with one thread, made the checked-in curve) and a fast BLAS: without one
(apt-get install libopenblas0-openmp; LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp) its matrix products are
Debian's reference loops. About two seconds a step on one free core. --steps N ends the same run earlier.

Model, job and every definition are the quickstart's (examples/quickstart.json): the same initial weights, the same
batches in the same order, the same schedule, so that nothing but rounding differs. They are written here anew from what
the headers say (core/philox.h, runtime/data/*.h, runtime/trainer/*.h, spec/job.h) and from Touvron et al. 2023, Su et al.
2021 (rotary positions), Loshchilov & Hutter 2019 (AdamW); nothing is read that Foresail computed.

curve.json: {"steps": [1, ..], "train_loss": [mean nats per token of every step's batch, before its update],
"validation": [[step, mean loss of the evaluation batches], ..]}.
"""
import argparse
import ctypes
import json
import math
import pathlib
import sys
import time

import numpy
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[3]
MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
END_OF_DOCUMENT = 256

# ---------------------------------------------------------------------------------------------------- random numbers


def philox4x32(counter, key):
    """Ten rounds of Philox (Salmon et al. 2011). `counter`: four uint64 arrays of 32-bit values; `key`: two ints."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = c0 * numpy.uint64(0xD2511F53)
        product1 = c2 * numpy.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = ((product1 >> numpy.uint64(32)) ^ c1 ^ numpy.uint64(k0), product1 & numpy.uint64(MASK32),
                          (product0 >> numpy.uint64(32)) ^ c3 ^ numpy.uint64(k1), product0 & numpy.uint64(MASK32))
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def words_of(value):
    return value & MASK32, value >> 32


class Hash128(ctypes.Structure):
    _fields_ = [("low64", ctypes.c_uint64), ("high64", ctypes.c_uint64)]


def stream_of(name):
    """A tensor's random stream: the upper half of XXH3-128 of its name."""
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library.XXH3_128bits(name.encode(), len(name)).high64


def normals(seed, stream, count):
    """Box-Muller: element p takes the draws 2p and 2p + 1 of its stream; a block of Philox holds four draws."""
    blocks = numpy.arange((count + 1) // 2, dtype=numpy.uint64)
    counter = [blocks & numpy.uint64(MASK32), blocks >> numpy.uint64(32)]
    counter += [numpy.full_like(blocks, word) for word in words_of(stream)]
    draws = numpy.stack(philox4x32(counter, words_of(seed)), axis=1).reshape(-1, 2)[:count]
    uniform = (draws.astype(numpy.float64) + 0.5) * 2.0 ** -32
    return numpy.sqrt(-2 * numpy.log(uniform[:, 0])) * numpy.cos(2 * math.pi * uniform[:, 1])


# ---------------------------------------------------------------------------------------------------- data


def read_documents(path):
    """Byte ids and the end-of-document id of every book, and where each begins."""
    books = path.read_bytes().strip(b"\n").split(b"\n\n")
    parts, begins, length = [], [], 0
    for book in books:
        begins.append(length)
        parts.append(numpy.append(numpy.frombuffer(book, dtype=numpy.uint8).astype(numpy.int64), END_OF_DOCUMENT))
        length += len(book) + 1
    return numpy.concatenate(parts), begins


def validation_begin(tokens, begins, length, fraction):
    """The book boundary nearest to the wished fraction (the later one of two equally near)."""
    needed = length + 1
    wish = min(max(math.floor((1 - fraction) * tokens + 0.5), needed), tokens - needed)
    return min((b for b in begins if needed <= b <= tokens - needed), key=lambda b: (abs(b - wish), -b))


class Permutation:
    """Eight Feistel rounds over the next even power of two, walked until below `count` (Black & Rogaway 2002)."""

    def __init__(self, count, seed, epoch):
        self.count = count
        bits = (count - 1).bit_length()
        self.half = 1 if bits < 2 else (bits + 1) // 2
        self.keys = []
        for pair in range(4):
            counter = [numpy.array([word], dtype=numpy.uint64) for word in (pair, 0x73687566, *words_of(epoch))]
            w = [int(word[0]) for word in philox4x32(counter, words_of(seed))]
            self.keys += [w[1] << 32 | w[0], w[3] << 32 | w[2]]

    @staticmethod
    def mix(x):
        x = ((x ^ x >> 33) * 0xFF51AFD7ED558CCD) & MASK64
        x = ((x ^ x >> 33) * 0xC4CEB9FE1A85EC53) & MASK64
        return x ^ x >> 33

    def __call__(self, position):
        mask = (1 << self.half) - 1
        while True:
            left, right = position >> self.half, position & mask
            for key in self.keys:
                left, right = right, left ^ (self.mix((right + key) & MASK64) & mask)
            position = left << self.half | right
            if position < self.count:
                return position


class Samples:
    """Windows of length + 1 tokens, neighbours sharing one; in a fresh order per epoch for training, else as they lie."""

    def __init__(self, tokens, length, seed):
        self.tokens, self.length, self.seed = tokens, length, seed
        self.count = (len(tokens) - 1) // length

    def batch(self, first, rows):
        windows = []
        for number in range(first, first + rows):
            epoch, place = divmod(number, self.count)
            if self.seed is not None:
                place = Permutation(self.count, self.seed, epoch)(place)
            windows.append(self.tokens[place * self.length : (place + 1) * self.length + 1])
        block = torch.from_numpy(numpy.stack(windows))
        return block[:, :-1], block[:, 1:]


# ---------------------------------------------------------------------------------------------------- model


def initial_weights(c, seed):
    width, inner = c["hidden_size"], c["intermediate_size"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], width), "model.norm.weight": (width,),
              "lm_head.weight": (c["vocab_size"], width)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes.update({p + f"self_attn.{name}_proj.weight": (width, width) for name in "qkvo"})
        shapes.update({p + "input_layernorm.weight": (width,), p + "post_attention_layernorm.weight": (width,),
                       p + "mlp.gate_proj.weight": (inner, width), p + "mlp.up_proj.weight": (inner, width),
                       p + "mlp.down_proj.weight": (width, inner)})
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            value = torch.ones(shape)
        else:
            draws = c["initializer_range"] * normals(seed, stream_of(name), math.prod(shape))
            value = torch.from_numpy(draws.astype(numpy.float32).reshape(shape))
        weights[name] = value.requires_grad_()
    return weights


class Llama:
    def __init__(self, config, length):
        self.c = config
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        frequencies = config["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        self.cos, self.sin = torch.cos(angles).float(), torch.sin(angles).float()
        self.mask = torch.full((length, length), -math.inf).triu(1)

    def norm(self, x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * weight

    def rotate(self, x):
        """Element i of a head turns with element i + D/2."""
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)

    def attention(self, x, w, p):
        rows, length, width = x.shape
        heads = self.c["num_attention_heads"]
        q, k, v = (functional.linear(x, w[p + name + "_proj.weight"]).view(rows, length, heads, -1).transpose(1, 2)
                   for name in "qkv")
        scores = self.rotate(q) @ self.rotate(k).transpose(-1, -2) * (width // heads) ** -0.5 + self.mask
        y = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(rows, length, width)
        return functional.linear(y, w[p + "o_proj.weight"])

    def loss(self, w, tokens, targets):
        x = functional.embedding(tokens, w["model.embed_tokens.weight"])
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, w[p + "input_layernorm.weight"]), w, p + "self_attn.")
            y = self.norm(x, w[p + "post_attention_layernorm.weight"])
            y = functional.silu(functional.linear(y, w[p + "mlp.gate_proj.weight"])) * functional.linear(
                y, w[p + "mlp.up_proj.weight"])
            x = x + functional.linear(y, w[p + "mlp.down_proj.weight"])
        logits = functional.linear(self.norm(x, w["model.norm.weight"]), w["lm_head.weight"])
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------------------------------------------- training


def learning_rate_at(o, step, total):
    """Linear warm-up from 0, then half a cosine down to the minimum at `total`."""
    peak, floor, warmup = o["learning_rate"], o["minimum_learning_rate"], o["warmup_steps"]
    if step <= warmup:
        return peak * step / warmup
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def make_optimizer(weights, o):
    """Weight decay is for matrices and embeddings, not for the scales of norms."""
    groups = [{"params": [w for w in weights.values() if w.dim() == 2], "weight_decay": o["weight_decay"]},
              {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(o["beta1"], o["beta2"]), eps=o.get("epsilon", 1e-8))


def clip(weights, bound):
    norm = math.sqrt(sum(w.grad.double().pow(2).sum().item() for w in weights.values()))
    if norm > bound:
        for w in weights.values():
            w.grad.mul_(bound / norm)
    return norm


def evaluate(model, weights, samples, job):
    with torch.no_grad():
        losses = [model.loss(weights, *samples.batch(i * job["global_batch"], job["global_batch"])).item()
                  for i in range(job["evaluation_batches"])]
    return sum(losses) / len(losses)


def train(job, config, text, last_step):
    length, batch = job["sequence_length"], job["global_batch"]
    tokens, begins = read_documents(text)
    cut = validation_begin(len(tokens), begins, length, job["validation_fraction"])
    training, held_out = Samples(tokens[:cut], length, job["seed"]), Samples(tokens[cut:], length, None)
    weights, model = initial_weights(config, job["seed"]), Llama(config, length)
    optimizer = make_optimizer(weights, job["optimizer"])
    print(f"{len(tokens)} tokens in {len(begins)} books; {training.count} samples to train on, {held_out.count} held out; "
          f"{sum(w.numel() for w in weights.values())} parameters", file=sys.stderr)
    curve = {"steps": [], "train_loss": [], "validation": []}
    for step in range(1, last_step + 1):
        began = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(job["optimizer"], step, job["steps"])
        optimizer.zero_grad()
        loss = model.loss(weights, *training.batch((step - 1) * batch, batch))
        loss.backward()
        norm = clip(weights, job["optimizer"]["clip_norm"])
        optimizer.step()
        curve["steps"].append(step)
        curve["train_loss"].append(round(loss.item(), 7))
        print(f"step {step}: loss {loss.item():.7f}, gradient norm {norm:.6f}, {time.monotonic() - began:.2f} s",
              file=sys.stderr, flush=True)
        if step == last_step or step % job["evaluation_interval_steps"] == 0:
            curve["validation"].append([step, round(evaluate(model, weights, held_out, job), 7)])
            print(f"step {step}: validation loss {curve['validation'][-1][1]}", file=sys.stderr, flush=True)
    return curve


def main():
    parser = argparse.ArgumentParser(description="The quickstart's loss curve in PyTorch.")
    parser.add_argument("text", type=pathlib.Path, help="what scripts/kjv_text prints")
    parser.add_argument("out", type=pathlib.Path, help="curve.json")
    parser.add_argument("--steps", type=int, help="stop after this step (default: the job's last)")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    job = json.loads((ROOT / "examples/quickstart.json").read_text())
    config = json.loads((ROOT / "models/catalogue" / (job["model"] + ".json")).read_text())
    curve = train(job, config, arguments.text, arguments.steps or job["steps"])
    lines = [f'"{key}": {json.dumps(values)}' for key, values in curve.items()]
    arguments.out.write_text("{" + ",\n ".join(lines) + "}\n")


if __name__ == "__main__":
    main()
