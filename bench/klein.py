#!/usr/bin/env python3
"""Measures whole denoising steps at FLUX.2 klein 4B's real shapes beside the layers that they are made of.

usage: bench/klein.py build/release/parfait [--folder DIR] [--formats mixed convrot_w4a4 ...] [--steps 3]

For each format tools/make_random_klein.py writes the pipeline into DIR/<format>, if it is not there yet
(2 to 8 GB each). One run then gives, at 512 x 512: the median time of a step by `parfait generate`; the
sum of its linear layers, each by itself, by `parfait run`; attention by that step's own profile; the peak
resident memory beside the packed weights.  In turn, three times: the time from the start of loading to the
first step, and the time to copy the file, which lies in the page cache, into memory that was just allocated,
which is what a load does at the least.  Prints a Markdown table.  Needs numpy.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
IMAGE, TEXT = 1024, 512  # rows at 512 x 512, and of the prompt
GROUPS = (("double_blocks.*img*", IMAGE), ("double_blocks.*txt*", TEXT), ("single_blocks.*", IMAGE + TEXT),
          ("img_in", IMAGE), ("final_layer.linear", IMAGE), ("*modulation*", 1), ("time_in*", 1))  # fmt: skip


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exited {done.returncode}: {done.stderr}")
    return done.stdout


def copy_seconds(path):
    """Of the file into new memory: the first touch of a page is a part of it, as it is of loading."""
    import numpy

    start = time.perf_counter()
    numpy.fromfile(path, numpy.uint8)
    return time.perf_counter() - start


def load_and_copy(parfait, folder):
    """Medians of three of each, and of their ratios."""
    loads, copies = [], []
    with tempfile.TemporaryDirectory() as out:
        for _ in range(3):
            text = run([parfait, "generate", "--model-dir", folder, "--prompt", "a seven", "--width", "64", "--height",
                        "64", "--steps", "1", "-o", pathlib.Path(out, "picture.png"), "--json"])  # fmt: skip
            loads.append(json.loads(text)["pictures"][0]["load_seconds"])
            copies.append(copy_seconds(folder / "diffusion_models/klein.safetensors"))
    ratios = [load / copy for load, copy in zip(loads, copies)]
    return statistics.median(loads), statistics.median(copies), statistics.median(ratios)


def measure(parfait, folder, steps):
    model = folder / "diffusion_models/klein.safetensors"
    linear = 0.0
    for pattern, rows in GROUPS:
        report = json.loads(run([parfait, "run", model, "--layers", pattern, "--rows", str(rows), "--json"]))
        linear += sum(layer["ms"] for layer in report["layers"]) / 1000
    with tempfile.TemporaryDirectory() as out:
        peak = pathlib.Path(out, "peak")
        text = run(["/usr/bin/time", "-q", "-f", "%M", "-o", peak, parfait, "generate", "--model-dir", folder,
                    "--prompt", "a handwritten seven", "--width", "512", "--height", "512",
                    "--steps", str(steps), "-o", pathlib.Path(out, "picture.png"), "--json"])  # fmt: skip
        peak_bytes = int(peak.read_text()) * 1024
    report = json.loads(text)
    picture = report["pictures"][0]
    weights = next(part for part in report["parts"] if part["role"] == "transformer")["weight_bytes"]
    step = statistics.median(picture["step_seconds"])
    attention = picture["profile"]["attention"]["seconds"] / steps
    load, copy, load_ratio = load_and_copy(parfait, folder)
    return {
        "step": step,
        "linear": linear,
        "attention": attention,
        "ratio": step / (linear + attention),
        "beside": peak_bytes - weights,
        "load": load,
        "copy": copy,
        "load_ratio": load_ratio,
        "weights": weights,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parfait")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/klein"))
    parser.add_argument("--formats", nargs="+", default=["int8_tensorwise", "convrot_w4a4", "mixed"])
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    print("| format | packed weights | step | linear layers alone | attention | step / sum | memory beside the weights"
          " | load | copy | load / copy |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in arguments.formats:
        folder = arguments.folder / name
        if not (folder / "tokenizer").is_dir():
            script = HERE.parent / "tools/make_random_klein.py"
            run([sys.executable, script, folder, "--format", name])
        m = measure(arguments.parfait, folder, arguments.steps)
        print(f"| `{name}` | {m['weights'] / 2**30:.2f} GiB | {m['step']:.2f} s | {m['linear']:.2f} s "
              f"| {m['attention']:.2f} s | {m['ratio']:.2f} | {m['beside'] / 2**20:.0f} MiB | {m['load']:.2f} s "
              f"| {m['copy']:.2f} s | {m['load_ratio']:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
