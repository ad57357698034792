#!/usr/bin/env python3
"""Weights and a checkpoint written by hand, with struct and json alone, from docs/checkpoint.md and the description of
safetensors: what anybody's script may bring us. Run: python3 tests/checkpoint/handmade/write_handmade.py [FOLDER]; the
tests read what it left beside itself.

  gpt2-hub/       as the hub has GPT-2: no "transformer." before the names, causal masks among them, one file
  llama-sharded/  two files and their index; bf16, norms in f32, rotary frequencies among them
  step-3/         foresail.checkpoint/1 without digests: a Llama, one matrix in two slabs of two files

Element i (row-major, in the file's orientation) of tensor NAME is k / 256 with k = (31 * sum of NAME's bytes + 7 i) mod 251
- 125: exact in every type. NAME is the whole name that Hugging Face gives it.
"""
import json
import os
import struct
import sys


def value(name, i):
    return ((31 * sum(name.encode()) + 7 * i) % 251 - 125) / 256


def bf16(x):
    return struct.pack("<f", x)[2:]


PACK = {"F32": lambda x: struct.pack("<f", x), "F16": lambda x: struct.pack("<e", x), "BF16": bf16,
        "F64": lambda x: struct.pack("<d", x)}


def elements(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def tensor_bytes(dtype, name, shape):
    return b"".join(PACK[dtype](value(name, i)) for i in range(elements(shape)))


def write_safetensors(path, tensors, metadata=None):
    """tensors: (name in the file, dtype, shape, bytes). Returns the offset of each tensor in the file."""
    header, at, offsets = {}, 0, {}
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, _, _, data in tensors:
            offsets[name] = out.tell()
            out.write(data)
    return offsets


def write_json(path, document):
    with open(path, "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1)


def gpt2_hub(folder):
    os.makedirs(folder, exist_ok=True)
    n, layers, vocabulary, positions = 8, 2, 19, 12
    write_json(f"{folder}/config.json",
               {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": n, "n_layer": layers, "n_head": 2,
                "n_positions": positions, "n_ctx": positions, "vocab_size": vocabulary, "bos_token_id": 18,
                "eos_token_id": 18, "task_specific_params": {"text-generation": {"max_length": 50}}})
    shapes = {"wte.weight": [vocabulary, n], "wpe.weight": [positions, n]}
    for i in range(layers):
        for name, shape in (("ln_1.weight", [n]), ("ln_1.bias", [n]), ("attn.c_attn.weight", [n, 3 * n]),
                            ("attn.c_attn.bias", [3 * n]), ("attn.c_proj.weight", [n, n]), ("attn.c_proj.bias", [n]),
                            ("ln_2.weight", [n]), ("ln_2.bias", [n]), ("mlp.c_fc.weight", [n, 4 * n]),
                            ("mlp.c_fc.bias", [4 * n]), ("mlp.c_proj.weight", [4 * n, n]), ("mlp.c_proj.bias", [n])):
            shapes[f"h.{i}.{name}"] = shape
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = [n]
    tensors = [(name, "F32", shape, tensor_bytes("F32", "transformer." + name, shape)) for name, shape in shapes.items()]
    for i in range(layers):
        mask = [1, 1, positions, positions]
        tensors.append((f"h.{i}.attn.bias", "U8", mask, bytes(elements(mask))))
        tensors.append((f"h.{i}.attn.masked_bias", "F32", [], struct.pack("<f", -1e4)))
    write_safetensors(f"{folder}/model.safetensors", tensors, {"format": "pt"})


def llama_shapes(layers, hidden, kv, ffn, vocabulary):
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden]}
    for i in range(layers):
        for name, shape in (("input_layernorm", [hidden]), ("self_attn.q_proj", [hidden, hidden]),
                            ("self_attn.k_proj", [kv, hidden]), ("self_attn.v_proj", [kv, hidden]),
                            ("self_attn.o_proj", [hidden, hidden]), ("post_attention_layernorm", [hidden]),
                            ("mlp.gate_proj", [ffn, hidden]), ("mlp.up_proj", [ffn, hidden]),
                            ("mlp.down_proj", [hidden, ffn])):
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    shapes["model.norm.weight"] = [hidden]
    shapes["lm_head.weight"] = [vocabulary, hidden]
    return shapes


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 21,
         "max_position_embeddings": 32, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


def llama_sharded(folder):
    os.makedirs(folder, exist_ok=True)
    write_json(f"{folder}/config.json", LLAMA)
    shapes = llama_shapes(2, 8, 4, 12, 21)
    names = sorted(shapes)
    files = {1: names[::2], 2: names[1::2]}  # a tensor and its neighbour are never in the same file
    weight_map, total = {}, 0
    for number, own in files.items():
        file = f"model-{number:05d}-of-00002.safetensors"
        tensors = []
        for name in own:
            dtype = "F32" if "norm" in name else "BF16"
            tensors.append((name, dtype, shapes[name], tensor_bytes(dtype, name, shapes[name])))
            weight_map[name] = file
        if number == 2:
            name = "model.layers.0.self_attn.rotary_emb.inv_freq"
            tensors.append((name, "F32", [1], struct.pack("<f", 1)))
            weight_map[name] = file
        total += sum(len(data) for _, _, _, data in tensors)
        write_safetensors(f"{folder}/{file}", tensors, {"format": "pt"})
    write_json(f"{folder}/model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def checkpoint(folder):
    os.makedirs(folder, exist_ok=True)
    shapes = llama_shapes(2, 8, 4, 12, 21)
    split = "model.embed_tokens.weight"  # rows 0 to 9 in the first file, the others in the second
    files = {"first.safetensors": [], "second.safetensors": []}
    slabs = {}
    for name, shape in shapes.items():
        columns = shape[1] if len(shape) > 1 else 1
        data = tensor_bytes("F32", name, shape)
        cuts = [("first.safetensors", 0, 10), ("second.safetensors", 10, shape[0])] if name == split else \
               [("first.safetensors", 0, shape[0])]
        for file, begin, end in cuts:
            inside = name if len(cuts) == 1 else f"{name}[{begin}:{end},0:{columns}]"
            part = [end - begin] + shape[1:]
            files[file].append((inside, "F32", part, data[begin * columns * 4:end * columns * 4]))
            slabs.setdefault(name, []).append({"part": [begin, end, 0, columns], "file": file, "name": inside,
                                               "pieces": []})
    described = []
    for file, tensors in files.items():
        offsets = write_safetensors(f"{folder}/{file}", tensors)
        described.append({"name": file, "bytes": os.path.getsize(f"{folder}/{file}"), "header_digest": "none"})
        for own in slabs.values():
            for slab in own:
                if slab["file"] == file:
                    slab["offset"] = offsets[slab["name"]]
    write_json(f"{folder}/manifest.json", {
        "schema": "foresail.checkpoint/1",
        "manifest_digest": "none",
        "state": {"step": 3, "samples_consumed": 0, "seed": 0, "foresail_version": "by hand", "plan_digest": "",
                  "dataset_identity": "", "model_name": "by hand", "model_config": json.dumps(LLAMA), "losses": [],
                  "notes": {}},
        "parameters_digest": "none",
        "piece_bytes": 4194304,
        "files": described,
        "tensors": [{"tensor": name, "quantity": "parameter", "dtype": "f32", "shape": shapes[name], "digest": "none",
                     "slabs": slabs[name]} for name in sorted(shapes)]})


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    gpt2_hub(f"{base}/gpt2-hub")
    llama_sharded(f"{base}/llama-sharded")
    checkpoint(f"{base}/step-3")
