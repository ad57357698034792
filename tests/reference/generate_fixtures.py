#!/usr/bin/python3
"""Losses, gradients and short trainings of small models in PyTorch, float64: what Foresail's numbers are held against.

Written from the papers and from the published model sources (GPT-2: Radford et al. 2019; Llama: Touvron et al. 2023;
rotary positions: Su et al. 2021; Mistral: Jiang et al. 2023; Mixtral: Jiang et al. 2024; Qwen2/Qwen3 technical reports;
DeepSeek-V2/V3: DeepSeek-AI 2024; YaRN: Peng et al. 2023; router z loss: Zoph et al. 2022; AdamW: Loshchilov & Hutter
2019), independent of the C++ code. Run: /usr/bin/python3 tests/reference/generate_fixtures.py (Debian's python3-torch);
the tests read the files it leaves and need no PyTorch.

One folder per model under tests/reference/fixtures/:

  config.json            a Hugging Face config
  fixture.json           {"sequence_length", "sequences", "batches": [{"tokens": [..], "targets": [..]}, ..],
                          "loss", "auxiliary_loss", "gradient_norm", "parameters", "trajectory": null or {"learning_rate", "beta1",
                          "beta2", "epsilon", "weight_decay", "clip_norm", "losses": [..], "gradient_norms": [..]}}
                         tokens and targets: sequences x sequence_length ids, row by row; target -1 is not counted.
                         loss: mean cross entropy (nats) over the counted targets of batch 0; auxiliary_loss: what the
                         routers add to it, gradients are of their sum; gradient_norm: of all gradients together. trajectory: step k (from 0) trains on batch k mod 2 with AdamW (decay on
                         matrices and embeddings only, gradients scaled by min(1, clip_norm / norm)); losses and norms
                         (before clipping) of the parameters before each update.
  gradients.safetensors  float32 (rounded from float64): every gradient of batch 0 under its Hugging Face name, in the
                         orientation of Hugging Face files (GPT-2's c_* matrices [in, out])
  trained.safetensors    float32: every parameter after the trajectory (only where there is one)

Initial weights are not stored: element i (row-major, file orientation) of tensor NAME is
    u = (2 k - 4095) / 16384,  k = top 12 bits of splitmix64(fnv1a64(NAME) + i * 0x9E3779B97F4A7C15 mod 2^64)
and 1 + u for norm weights. Every value is exact in float32.
"""
import json
import math
import os
import struct

import numpy
import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
MASK = (1 << 64) - 1


def fnv1a64(text):
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def mix(states):
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014) over a uint64 array."""
    states = (states ^ (states >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return states ^ (states >> numpy.uint64(31))


def draws(name, count):
    counters = numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    return mix(counters + numpy.uint64(fnv1a64(name)))


def initial(name, shape):
    bits = (draws(name, math.prod(shape)) >> numpy.uint64(52)).astype(numpy.float64)
    values = (2 * bits - 4095) / 16384
    if is_norm_weight(name):
        values = values + 1
    return torch.tensor(values.reshape(shape), requires_grad=True)


def is_norm_weight(name):
    return name.endswith("weight") and any(part in name for part in ("norm", "ln_"))


# ---------------------------------------------------------------------------------------------------- model parts


def causal_attention(q, k, v, window=0, sharpness=1.0):
    """q [B,A,S,D]; k [B,G,S,D], v [B,G,S,W], each shared by A/G neighbouring query heads; `window` keys back at most, 0:
    all. Scores are q k / sqrt(D) times `sharpness`."""
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) * sharpness
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None, :]
    allowed = distance >= 0
    if window:
        allowed = allowed & (distance < window)
    return torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1) @ v


def heads_of(x, count):
    batch, length, width = x.shape
    return x.view(batch, length, count, width // count).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def rms_norm(x, weight, epsilon):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def layer_norm(x, weight, bias, epsilon):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + epsilon) * weight + bias


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def inverse_frequencies(config, head_dim):
    frequencies = config["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return frequencies
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "yarn":
        return yarn_frequencies(frequencies, scaling, config["rope_theta"], head_dim)
    assert kind == "llama3"
    # Llama 3.1: long waves are stretched by the factor, short ones kept, those between blended.
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    result = []
    for frequency in frequencies.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            result.append(frequency)
        elif wavelength > original / low:
            result.append(frequency / scaling["factor"])
        else:
            blend = (original / wavelength - low) / (high - low)
            result.append((1 - blend) * frequency / scaling["factor"] + blend * frequency)
    return torch.tensor(result)


def yarn_frequencies(frequencies, scaling, theta, head_dim):
    """Pairs that turn often over the original positions keep their frequency, those that turn rarely are stretched."""
    def pair_of(turns):
        waves = scaling["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return head_dim * math.log(waves) / (2 * math.log(theta))

    low = max(math.floor(pair_of(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_of(scaling.get("beta_slow", 1))), head_dim - 1)
    stretched = ((torch.arange(head_dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / scaling["factor"] * stretched + frequencies * (1 - stretched)


def yarn_magnitude(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_magnitude(config):
    """What cosines and sines are multiplied by."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) != "yarn":
        return 1.0
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return (yarn_magnitude(scaling["factor"], scaling["mscale"])
                / yarn_magnitude(scaling["factor"], scaling["mscale_all_dim"]))
    return scaling.get("attention_factor", yarn_magnitude(scaling["factor"]))


def rotate(x, frequencies, magnitude=1.0):
    """Half-split rotary positions: element i turns with element i + D/2."""
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * frequencies[None, :]
    cos, sin = magnitude * torch.cos(angles), magnitude * torch.sin(angles)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def masked_mean_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1)


# ---------------------------------------------------------------------------------------------------- the families


def gpt2_shapes(c):
    width, inner = c["n_embd"], c["n_inner"]
    shapes = {"transformer.wte.weight": (c["vocab_size"], width), "transformer.wpe.weight": (c["n_positions"], width)}
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            shapes[p + norm + ".weight"] = shapes[p + norm + ".bias"] = (width,)
        for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", width, inner), ("mlp.c_proj", inner, width)):
            shapes[p + name + ".weight"] = (rows, columns)
            shapes[p + name + ".bias"] = (columns,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (width,)
    return shapes


def gpt2_loss(c, w, tokens, targets):
    def product(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(x, name):
        return layer_norm(x, w[name + ".weight"], w[name + ".bias"], c["layer_norm_epsilon"])

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["n_layer"]):
        p = f"transformer.h.{i}."
        q, k, v = (heads_of(part, c["n_head"]) for part in product(norm(x, p + "ln_1"), p + "attn.c_attn").chunk(3, -1))
        x = x + product(merge_heads(causal_attention(q, k, v)), p + "attn.c_proj")
        x = x + product(gelu_tanh(product(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return masked_mean_loss(norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T, targets), torch.zeros(())


def expert_count(c):
    return c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts") or 0


def has_experts(c, layer):
    return expert_count(c) > 0 and layer >= c.get("first_k_dense_replace", 0)


def expert_names(c, p):
    """Of a layer: router, then (gate, up, down) of expert e."""
    if c["model_type"] == "mixtral":
        block = p + "block_sparse_moe."
        return block + "gate.weight", lambda e: [f"{block}experts.{e}.{part}.weight" for part in ("w1", "w3", "w2")]
    block = p + "mlp."
    return block + "gate.weight", lambda e: [
        f"{block}experts.{e}.{part}_proj.weight" for part in ("gate", "up", "down")]


def expert_shapes(c, p):
    width, inner = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
    router, parts_of = expert_names(c, p)
    shapes = {router: (expert_count(c), width)}
    if c["model_type"] == "deepseek_v3":
        shapes[p + "mlp.gate.e_score_correction_bias"] = (expert_count(c),)
    for e in range(expert_count(c)):
        gate, up, down = parts_of(e)
        shapes[gate] = shapes[up] = (inner, width)
        shapes[down] = (width, inner)
    shared = inner * (c.get("n_shared_experts") or 0)
    if shared:
        shapes[p + "mlp.shared_experts.gate_proj.weight"] = (shared, width)
        shapes[p + "mlp.shared_experts.up_proj.weight"] = (shared, width)
        shapes[p + "mlp.shared_experts.down_proj.weight"] = (width, shared)
    return shapes


def swiglu(x, gate, up, down):
    opened = x @ gate.T
    return (opened * torch.sigmoid(opened) * (x @ up.T)) @ down.T


def clear_top(values, count):
    """Indices of the largest; fails if rounding could choose others."""
    ordered = values.sort(dim=-1, descending=True).values
    if count < values.shape[-1]:
        assert (ordered[..., count - 1] - ordered[..., count]).min() > 1e-5
    return values.topk(count, dim=-1).indices


def choose_experts(c, w, p, logits):
    """Scores, and the indices and gates of a token's experts."""
    count = c["num_experts_per_tok"]
    if c["model_type"] != "deepseek_v3":
        scores = torch.softmax(logits, dim=-1)
        index = clear_top(scores, count)
        gates = scores.gather(-1, index)
        if c.get("norm_topk_prob", c["model_type"] == "mixtral"):
            gates = gates / gates.sum(-1, keepdim=True)
        return scores, index, gates
    scores = torch.sigmoid(logits)
    choice = scores.detach() + w[p + "mlp.gate.e_score_correction_bias"].detach()
    groups = choice.unflatten(-1, (c["n_group"], -1))
    best_groups = clear_top(groups.topk(2, dim=-1).values.sum(-1), c["topk_group"])
    allowed = torch.zeros(groups.shape[:-1], dtype=torch.bool).scatter(-1, best_groups, True)
    choice = groups.masked_fill(~allowed[..., None], -math.inf).flatten(-2)
    index = clear_top(choice, count)
    gates = scores.gather(-1, index)
    return scores, index, gates / gates.sum(-1, keepdim=True) * c["routed_scaling_factor"]


def router_losses(c, logits, scores, index, targets):
    """Balance loss of every sequence (DeepSeek-V3, equations 17 to 20), weighted by its counted targets, and z loss."""
    experts, length = logits.shape[-1], logits.shape[1]
    chosen = torch.nn.functional.one_hot(index, experts).sum(-2).to(scores.dtype)
    fraction = chosen.mean(1) * experts / index.shape[-1]
    probability = (scores / scores.sum(-1, keepdim=True)).mean(1)
    counted = (targets >= 0).to(scores.dtype)
    balance = ((fraction * probability).sum(-1) * counted.sum(1)).sum()
    z = (torch.logsumexp(logits, dim=-1) ** 2 * counted).sum()
    assert length == targets.shape[1]
    return (c["aux_loss_alpha"] * balance + c["router_z_loss_coef"] * z) / counted.sum()


def expert_ffn(c, w, p, x, targets):
    """The output of a layer's experts, and what its router adds to the loss."""
    router, parts_of = expert_names(c, p)
    logits = x @ w[router].T
    scores, index, gates = choose_experts(c, w, p, logits)
    y = torch.zeros_like(x)
    for e in range(expert_count(c)):
        gate = (gates * (index == e)).sum(-1, keepdim=True)
        y = y + gate * swiglu(x, *(w[name] for name in parts_of(e)))
    if c.get("n_shared_experts"):
        y = y + swiglu(x, *(w[p + f"mlp.shared_experts.{part}_proj.weight"] for part in ("gate", "up", "down")))
    return y, router_losses(c, logits, scores, index, targets)


def decoder_head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def latent_shapes(c, p):
    """Multi-head latent attention: queries with a latent of their own or without."""
    width, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
    nope, value, rank = c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    shapes = {p + "kv_a_proj_with_mqa.weight": (rank + rope, width), p + "kv_a_layernorm.weight": (rank,),
              p + "kv_b_proj.weight": (heads * (nope + value), rank), p + "o_proj.weight": (width, heads * value)}
    if c["q_lora_rank"] is None:
        shapes[p + "q_proj.weight"] = (heads * (nope + rope), width)
    else:
        shapes[p + "q_a_proj.weight"] = (c["q_lora_rank"], width)
        shapes[p + "q_a_layernorm.weight"] = (c["q_lora_rank"],)
        shapes[p + "q_b_proj.weight"] = (heads * (nope + rope), c["q_lora_rank"])
    return shapes


LATENT_EPSILON = 1e-6  # of the norms of latents, in the published sources, whatever rms_norm_eps is


def latent_attention(c, w, p, x, frequencies):
    heads, nope, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"]

    def even_before_odd(y):  # pairs of neighbours become halves
        return torch.cat((y[..., 0::2], y[..., 1::2]), dim=-1)

    def turned(y):
        return rotate(even_before_odd(y), frequencies, rope_magnitude(c))

    if p + "q_proj.weight" in w:
        q = x @ w[p + "q_proj.weight"].T
    else:
        latent = rms_norm(x @ w[p + "q_a_proj.weight"].T, w[p + "q_a_layernorm.weight"], LATENT_EPSILON)
        q = latent @ w[p + "q_b_proj.weight"].T
    q = heads_of(q, heads)
    q = torch.cat((q[..., :nope], turned(q[..., nope:])), dim=-1)
    compressed = x @ w[p + "kv_a_proj_with_mqa.weight"].T
    latent = rms_norm(compressed[..., :rank], w[p + "kv_a_layernorm.weight"], LATENT_EPSILON)
    kv = heads_of(latent @ w[p + "kv_b_proj.weight"].T, heads)
    shared = turned(compressed[..., rank:][:, None])
    k = torch.cat((kv[..., :nope], shared.expand(-1, heads, -1, -1)), dim=-1)
    scaling = c.get("rope_scaling") or {}
    sharpness = 1.0
    if scaling.get("mscale_all_dim"):
        sharpness = yarn_magnitude(scaling["factor"], scaling["mscale_all_dim"]) ** 2
    return merge_heads(causal_attention(q, k, kv[..., nope:], sharpness=sharpness)) @ w[p + "o_proj.weight"].T


def decoder_shapes(c):
    width, inner, head_dim = c["hidden_size"], c["intermediate_size"], decoder_head_dim(c)
    queries, keys = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], width)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes[p + "input_layernorm.weight"] = shapes[p + "post_attention_layernorm.weight"] = (width,)
        if "kv_lora_rank" in c:
            shapes.update(latent_shapes(c, p + "self_attn."))
        else:
            for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                shapes[p + f"self_attn.{name}.weight"] = (rows, width)
                if c["model_type"] == "qwen2":
                    shapes[p + f"self_attn.{name}.bias"] = (rows,)
            shapes[p + "self_attn.o_proj.weight"] = (width, queries)
        if c["model_type"] in ("qwen3", "qwen3_moe"):
            shapes[p + "self_attn.q_norm.weight"] = shapes[p + "self_attn.k_norm.weight"] = (head_dim,)
        if has_experts(c, i):
            shapes.update(expert_shapes(c, p))
            continue
        shapes[p + "mlp.gate_proj.weight"] = shapes[p + "mlp.up_proj.weight"] = (inner, width)
        shapes[p + "mlp.down_proj.weight"] = (width, inner)
    shapes["model.norm.weight"] = (width,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    return shapes


def decoder_attention(c, w, p, x, frequencies):
    if "kv_lora_rank" in c:
        return latent_attention(c, w, p, x, frequencies)

    def project(name, heads):
        y = x @ w[p + name + "_proj.weight"].T
        if p + name + "_proj.bias" in w:
            y = y + w[p + name + "_proj.bias"]
        y = heads_of(y, heads)
        if p + name + "_norm.weight" in w:
            y = rms_norm(y, w[p + name + "_norm.weight"], c["rms_norm_eps"])
        return y

    q = rotate(project("q", c["num_attention_heads"]), frequencies, rope_magnitude(c))
    k = rotate(project("k", c["num_key_value_heads"]), frequencies, rope_magnitude(c))
    v = project("v", c["num_key_value_heads"])
    window = (c.get("sliding_window") or 0) if c["model_type"] == "mistral" else 0
    return merge_heads(causal_attention(q, k, v, window)) @ w[p + "o_proj.weight"].T


def decoder_loss(c, w, tokens, targets):
    frequencies = inverse_frequencies(c, c.get("qk_rope_head_dim") or decoder_head_dim(c))
    x = w["model.embed_tokens.weight"][tokens]
    auxiliary = torch.zeros(())
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        normed = rms_norm(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"])
        x = x + decoder_attention(c, w, p + "self_attn.", normed, frequencies)
        normed = rms_norm(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        if has_experts(c, i):
            y, added = expert_ffn(c, w, p, normed, targets)
            auxiliary = auxiliary + added
        else:
            y = swiglu(normed, *(w[p + f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down")))
        x = x + y
    x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    return masked_mean_loss(x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T, targets), auxiliary


# ---------------------------------------------------------------------------------------------------- fixtures

VOCABULARY, LENGTH, SEQUENCES, STEPS = 67, 16, 2, 10
OPTIMIZER = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}


def decoder_config(model_type, architecture, **changes):
    config = {"model_type": model_type, "architectures": [architecture], "vocab_size": VOCABULARY, "hidden_size": 32,
              "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "rope_scaling": None, "tie_word_embeddings": False, "attention_dropout": 0.0}
    config.update(changes)
    return config


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 64}
YARN_SCALING = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 4, "beta_slow": 1}
LATENT = {"num_key_value_heads": 4, "n_routed_experts": None, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
          "kv_lora_rank": 12}
# Far larger than anybody trains with, so that their gradients are seen.
ROUTER_LOSSES = {"aux_loss_alpha": 0.5, "seq_aux": True, "router_z_loss_coef": 0.05}
# Config, and the clip norm of its trajectory (None: gradients only). GPT-2's clips some steps and not others.
MODELS = {
    "gpt2": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": 24,
              "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "activation_function": "gelu_new",
              "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, 2.0),
    "llama": (decoder_config("llama", "LlamaForCausalLM"), 1.0),
    "llama3-scaled": (decoder_config("llama", "LlamaForCausalLM", hidden_size=24, num_attention_heads=3,
                                     num_key_value_heads=1, intermediate_size=32, rope_scaling=LLAMA3_SCALING), None),
    "llama-linear": (decoder_config("llama", "LlamaForCausalLM", hidden_size=16, num_attention_heads=2,
                                    num_key_value_heads=2, intermediate_size=24,
                                    rope_scaling={"type": "linear", "factor": 4.0}), None),
    "mistral-window": (decoder_config("mistral", "MistralForCausalLM", hidden_size=24, num_attention_heads=6,
                                      head_dim=4, intermediate_size=32, sliding_window=5), None),
    "qwen2": (decoder_config("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True), None),
    "qwen3": (decoder_config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True, head_dim=16, intermediate_size=32,
                             rope_theta=1000000.0), None),
    "qwen2-yarn": (decoder_config("qwen2", "Qwen2ForCausalLM", hidden_size=24, num_attention_heads=2,
                                  intermediate_size=32, rope_theta=100.0, rope_scaling=YARN_SCALING), None),
    "deepseek-v3-dense": (decoder_config("deepseek_v3", "DeepseekV3ForCausalLM", **LATENT, q_lora_rank=10,
                                         v_head_dim=5), 1.0),
    "deepseek-v2-yarn": (decoder_config("deepseek_v2", "DeepseekV2ForCausalLM", **LATENT, q_lora_rank=None,
                                        v_head_dim=18, rope_theta=100.0,
                                        rope_scaling={**YARN_SCALING, "mscale": 0.7, "mscale_all_dim": 1.0}), None),
    "mixtral": (decoder_config("mixtral", "MixtralForCausalLM", hidden_size=24, intermediate_size=20,
                               num_local_experts=5, num_experts_per_tok=2, sliding_window=None, **ROUTER_LOSSES), 1.0),
    "qwen3-moe": (decoder_config("qwen3_moe", "Qwen3MoeForCausalLM", hidden_size=24, head_dim=8, num_experts=9,
                                 num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=False,
                                 decoder_sparse_step=1, mlp_only_layers=[], **ROUTER_LOSSES), None),
    "deepseek-v3": (decoder_config("deepseek_v3", "DeepseekV3ForCausalLM", hidden_size=24, num_key_value_heads=4,
                                   q_lora_rank=10, kv_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4,
                                   v_head_dim=5, num_hidden_layers=3, first_k_dense_replace=1, n_routed_experts=12,
                                   num_experts_per_tok=3, moe_intermediate_size=10, n_shared_experts=2, n_group=4,
                                   topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, moe_layer_freq=1,
                                   scoring_func="sigmoid", topk_method="noaux_tc", **ROUTER_LOSSES), None),
}


def make_batch(number):
    """Each sequence predicts its next token; a few targets are masked, and not equally many per sequence."""
    stream = (draws(f"batch {number}", SEQUENCES * (LENGTH + 1)) >> numpy.uint64(33)) % numpy.uint64(VOCABULARY)
    rows = stream.astype(numpy.int64).reshape(SEQUENCES, LENGTH + 1)
    targets = rows[:, 1:].copy()
    targets[0, 3 : 3 + number % 3 + 1] = -1
    targets[1, LENGTH - 1] = -1
    return torch.tensor(rows[:, :-1]), torch.tensor(targets)


def gradient_norm(weights):
    return math.sqrt(sum(w.grad.pow(2).sum().item() for w in weights.values()))


def train(config, loss_of, weights, batches, clip_norm):
    decayed = [w for name, w in weights.items() if w.dim() == 2]
    others = [w for name, w in weights.items() if w.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=OPTIMIZER["learning_rate"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["epsilon"])
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        loss, auxiliary = loss_of(config, weights, tokens, targets)
        (loss + auxiliary).backward()
        norm = gradient_norm(weights)
        for w in weights.values():
            w.grad.mul_(min(1.0, clip_norm / norm))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return {**OPTIMIZER, "clip_norm": clip_norm, "losses": losses, "gradient_norms": norms}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        content = tensors[name].detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    with open(path, "w") as file:
        file.write(json.dumps(value, separators=(",", ": ")).replace("},", "},\n") + "\n")


def make_fixture(folder, config, clip_norm):
    os.makedirs(folder, exist_ok=True)
    gpt2 = config["model_type"] == "gpt2"
    shapes = (gpt2_shapes if gpt2 else decoder_shapes)(config)
    loss_of = gpt2_loss if gpt2 else decoder_loss
    weights = {name: initial(name, shape) for name, shape in shapes.items()}
    batches = [make_batch(number) for number in range(2 if clip_norm else 1)]
    loss, auxiliary = loss_of(config, weights, *batches[0])
    (loss + auxiliary).backward()
    for w in weights.values():
        if w.grad is None:  # a correction bias only chooses
            w.grad = torch.zeros_like(w)
    fixture = {"sequence_length": LENGTH, "sequences": SEQUENCES,
               "batches": [{"tokens": tokens.reshape(-1).tolist(), "targets": targets.reshape(-1).tolist()}
                           for tokens, targets in batches],
               "loss": loss.item(), "auxiliary_loss": auxiliary.item(), "gradient_norm": gradient_norm(weights),
               "parameters": sum(math.prod(shape) for shape in shapes.values()), "trajectory": None}
    write_safetensors(os.path.join(folder, "gradients.safetensors"), {name: w.grad for name, w in weights.items()})
    if clip_norm:
        fixture["trajectory"] = train(config, loss_of, weights, batches, clip_norm)
        write_safetensors(os.path.join(folder, "trained.safetensors"), weights)
    write_json(os.path.join(folder, "fixture.json"), fixture)
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write(json.dumps(config, indent=2) + "\n")
    print(os.path.basename(folder), fixture["loss"], fixture["gradient_norm"], fixture["parameters"],
          fixture["trajectory"])


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    for name, (config, clip_norm) in MODELS.items():
        make_fixture(os.path.join(root, name), config, clip_norm)


if __name__ == "__main__":
    main()
