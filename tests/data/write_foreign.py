#!/usr/bin/env python3
"""Small datasets in the forms of other programs, byte by byte from their descriptions with Python's struct alone: what
Foresail's readers are held against. Independent of the C++ code and of NumPy.

Run: python3 tests/data/write_foreign.py; it writes tests/data/foreign/:

  gpt2/tiny_{train_000001,train_000002,val_000000}.bin   llm.c token shards, u16 (dev/data/data_common.py, write_datafile)
  llama3/tiny_000000.bin                                 the same for Llama 3, u32
  megatron/{u8,i8,i16,i32,i64,u16}.{bin,idx}             IndexedDatasets (megatron/core/datasets/indexed_dataset.py)

Tokens follow a rule that the test repeats: token j of document d is 100 d + j + 1 (31 d + j + 1, modulo 128, in 8-bit
types). In shards the end-of-text token stands before each document, as llm.c's fineweb.py puts it, and the second training
shard begins in the middle of document 2.
"""
import os
import struct

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "foreign")


def shard(path, magic, version, code, tokens):
    header = struct.pack("<3i", magic, version, len(tokens)) + bytes(4 * 253)
    assert len(header) == 1024
    write(path, header + struct.pack("<%d%s" % (len(tokens), code), *tokens))


def write(path, content):
    path = os.path.join(FOLDER, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def document(number, length):
    return [100 * number + j + 1 for j in range(length)]


def documents(end_of_text, first, lengths):
    tokens = []
    for i, length in enumerate(lengths):
        tokens += [end_of_text] + document(first + i, length)
    return tokens


def write_shards():
    train = documents(50256, 0, [5, 0, 40, 11, 20])
    cut = 30  # inside document 2
    shard("gpt2/tiny_train_000001.bin", 20240520, 1, "H", train[:cut])
    shard("gpt2/tiny_train_000002.bin", 20240520, 1, "H", train[cut:])
    shard("gpt2/tiny_val_000000.bin", 20240520, 1, "H", documents(50256, 5, [9, 14]))
    shard("llama3/tiny_000000.bin", 20240801, 7, "I", documents(128000, 0, [3, 60, 8]))


# Documents of several sequences, of one and of none, and an empty sequence.
SEQUENCES = [[4, 0, 3], [12], [], [1, 1]]


def indexed(name, type_code, code, small):
    size = struct.calcsize("<" + code)
    tokens, lengths, boundaries = [], [], [0]
    for number, document_lengths in enumerate(SEQUENCES):
        count = sum(document_lengths)
        tokens += [(31 * number + j + 1) % 128 for j in range(count)] if small else document(number, count)
        lengths += document_lengths
        boundaries.append(len(lengths))
    offsets, place = [], 0
    for length in lengths:
        offsets.append(place)
        place += length * size
    write("megatron/%s.bin" % name, struct.pack("<%d%s" % (len(tokens), code), *tokens))
    write("megatron/%s.idx" % name,
          b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, type_code, len(lengths), len(boundaries))
          + struct.pack("<%di" % len(lengths), *lengths) + struct.pack("<%dq" % len(offsets), *offsets)
          + struct.pack("<%dq" % len(boundaries), *boundaries))


if __name__ == "__main__":
    write_shards()
    for row in [("u8", 1, "B", True), ("i8", 2, "b", True), ("i16", 3, "h", False), ("i32", 4, "i", False),
                ("i64", 5, "q", False), ("u16", 8, "H", False)]:
        indexed(*row)
