#!/usr/bin/env python3
"""Write a sparse safetensors file with the header of a big checkpoint.

By default this is the pruned MiniMax-H3 transformer in the mixed ComfyUI form:
932 tensors, of which 200 linear layers are quantized (117 convrot_w4a4 and 83
int8_tensorwise with convrot, group 256).  Names, shapes, dtypes, order and the
.comfy_quant marker bytes are real; everything else is a hole in the file that
reads as zero, so the ~14 GB file needs a few hundred kilobytes of disk.  It
serves to test and time opening, inspecting and planning.

    python tools/make_h3_header.py h3.safetensors
    python tools/make_h3_header.py h3.safetensors --int8-only
    python tools/make_h3_header.py h3.safetensors --prefix model.diffusion_model.
    python tools/make_h3_header.py many.safetensors --tensors 1000000

Python's standard library is enough.
"""

import argparse
import json
import os
import struct
from collections import Counter

HIDDEN, INNER, FFN, TEXT, BLOCKS = 5376, 7168, 14336, 5120, 50

# The four quantized layers of a block, [rows, columns].
GEMMS = {
    "attn.qkv_proj": (3 * INNER, HIDDEN),
    "attn.out_proj": (HIDDEN, INNER),
    "mlp.fc1": (2 * FFN, HIDDEN),
    "mlp.fc2": (HIDDEN, FFN),
}
# Biggest layers turn 4-bit first.  The public mixed file's own choice is not known.
W4A4_ORDER = ("mlp.fc1", "attn.qkv_proj", "mlp.fc2", "attn.out_proj")

# The reference writer sorts by dtype, widest first, then by name.
DTYPES = ("F32", "BF16", "F16", "I8", "U8")
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}

HEADER_LIMIT = 100_000_000          # the reference reader refuses longer headers

INT8_MARKER = json.dumps({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256})
W4A4_MARKER = json.dumps({"format": "convrot_w4a4", "convrot_groupsize": 256})


def w4a4_layers(count):
    """The names of `count` layers; the last, partly filled kind is spread over the blocks."""
    chosen = set()
    for kind in W4A4_ORDER:
        take = min(BLOCKS, count - len(chosen))
        for i in range(take):
            chosen.add(f"blocks.{i * BLOCKS // take}.{kind}")
    return chosen


def h3_tensors(w4a4):
    """(name, dtype, shape) of every tensor, and the marker text by tensor name."""
    out, markers = [], {}

    def add(name, dtype, *shape):
        out.append((name, dtype, shape))

    def norms(p):
        add(p + "norm1.weight", "BF16", HIDDEN)
        add(p + "norm2.weight", "BF16", HIDDEN)
        add(p + "attn.q_norm.weight", "BF16", 128)
        add(p + "attn.k_norm.weight", "BF16", 128)

    for name, width in (("video_patch_proj", 96), ("audio_patch_proj", 32)):
        add(name + ".weight", "F32", HIDDEN, width)
        add(name + ".bias", "F32", HIDDEN)
    add("condition_proj.weight", "BF16", HIDDEN, TEXT)
    add("condition_proj.bias", "BF16", HIDDEN)
    add("adaln_t_table", "F32", 1025, 8)
    add("rope.inv_freq", "F32", 16)

    for i in range(2):
        p = f"token_refiner.blocks.{i}."
        norms(p)
        for kind, shape in GEMMS.items():
            add(p + kind + ".weight", "BF16", *shape)
    add("token_refiner.final_norm.weight", "BF16", HIDDEN)

    for i in range(BLOCKS):
        p = f"blocks.{i}."
        norms(p)
        for kind, (n, k) in GEMMS.items():
            layer = p + kind
            if layer in w4a4:
                add(layer + ".weight", "I8", n, k // 2)
                add(layer + ".weight_scale", "F32", n)
                text = W4A4_MARKER
            else:
                add(layer + ".weight", "I8", n, k)
                add(layer + ".weight_scale", "F32", n, 1)
                text = INT8_MARKER
            markers[layer + ".comfy_quant"] = text
            add(layer + ".comfy_quant", "U8", len(text))
        add(p + "adaln_proj.linear.weight", "F16", 18 * HIDDEN, 8)
        add(p + "adaln_proj.linear.bias", "F16", 18 * HIDDEN)

    add("final_layer.norm.weight", "BF16", HIDDEN)
    add("final_layer.adaln_proj.linear.weight", "F16", 2 * HIDDEN, 8)
    add("final_layer.adaln_proj.linear.bias", "F16", 2 * HIDDEN)
    for name, width in (("video_out", 96), ("audio_out", 32)):
        add(f"final_layer.{name}.weight", "F32", width, HIDDEN)
        add(f"final_layer.{name}.bias", "F32", width)
    return out, markers


def plain_tensors(count):
    """`count` plain BF16 vectors of four values."""
    return [(f"t.{i}.weight", "BF16", (4,)) for i in range(count)], {}


def write(path, tensors, markers):
    tensors = sorted(tensors, key=lambda t: (DTYPES.index(t[1]), t[0]))
    parts, at, where = [], 0, {}
    for name, dtype, shape in tensors:
        size = SIZE[dtype]
        for d in shape:
            size *= d
        parts.append('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}' % (
            json.dumps(name), dtype, ",".join(map(str, shape)), at, at + size))
        if name in markers:
            where[name] = at
        at += size
    header = ("{" + ",".join(parts) + "}").encode()
    header += b" " * (-len(header) % 8)
    if len(header) > HEADER_LIMIT:
        raise SystemExit(f"the header would have {len(header)} bytes, more than the limit "
                         f"{HEADER_LIMIT} of the reference reader")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)))
        f.write(header)
        f.truncate(8 + len(header) + at)
        for name, offset in where.items():
            f.seek(8 + len(header) + offset)
            f.write(markers[name].encode())
    return len(header), at


def check_h3(tensors, markers, w4a4):
    kinds = Counter(dtype for _, dtype, _ in tensors)
    assert len(tensors) == 932, len(tensors)
    assert len({name for name, _, _ in tensors}) == 932
    assert len(markers) == 200
    assert sum(text == W4A4_MARKER for text in markers.values()) == len(w4a4)
    assert kinds == {"I8": 200, "U8": 200, "F32": 210, "BF16": 220, "F16": 102}, kinds


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("output")
    ap.add_argument("--w4a4-layers", type=int, default=117, metavar="N",
                    help="how many of the 200 layers are convrot_w4a4 (default 117)")
    ap.add_argument("--int8-only", action="store_true", help="the same as --w4a4-layers 0")
    ap.add_argument("--prefix", default="", help="put before every name, "
                    "e.g. model.diffusion_model.")
    ap.add_argument("--tensors", type=int, metavar="N",
                    help="instead: N small plain tensors")
    args = ap.parse_args()

    if args.tensors is not None:
        tensors, markers = plain_tensors(args.tensors)
    else:
        count = 0 if args.int8_only else args.w4a4_layers
        if not 0 <= count <= 200:
            ap.error("--w4a4-layers must be 0..200")
        w4a4 = w4a4_layers(count)
        assert len(w4a4) == count
        tensors, markers = h3_tensors(w4a4)
        check_h3(tensors, markers, w4a4)
    if args.prefix:
        tensors = [(args.prefix + n, d, s) for n, d, s in tensors]
        markers = {args.prefix + n: text for n, text in markers.items()}

    header, data = write(args.output, tensors, markers)
    stat = os.stat(args.output)
    print(f"{args.output}: {len(tensors)} tensors, {len(markers)} markers, header {header} bytes, "
          f"{stat.st_size} bytes long ({stat.st_size / 1e9:.2f} GB), "
          f"{getattr(stat, 'st_blocks', 0) * 512} bytes on disk")


if __name__ == "__main__":
    main()
