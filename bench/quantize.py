#!/usr/bin/env python3
"""Measures quantize, convert, shard, merge and verify beside `cp`, comfy-kitchen and their memory caps.

usage: bench/quantize.py build/release/parfait [--size 4G] [--repeats 3] [--sparse 12G] [--split] [--keep]

Speed: a bf16 file of SIZE with normal weights is written (once; --keep leaves it for the next run).
Then `cp`, quantize to INT8 and W4A4, convert, shard, merge and verify run in turn, REPEATS times, the
source in the page cache, and medians are printed. In each turn comfy-kitchen's eager encoders, on as
many torch threads as there are cores, take a sample of the layers: read through safetensors and encoded,
written nowhere; the time is scaled by bytes to the whole file.  --no-kitchen leaves them out.

Memory: --sparse SIZE (0: none) makes a source that is all holes, so zeros, and runs each verb on it
under --max-memory's default and 512M. "peak RSS" is GNU time's account of the whole process, mapped
pages of the source among them; of these, "anonymous" is the peak of samples every 20 ms.

--split traces the system calls of one quantize of each format (perf trace; root) and says where the
time goes, summed over the threads.

Files are made in --folder (build/quantize) and removed at the end unless --keep is given. Needs numpy;
torch, safetensors and comfy-kitchen for the peers.  Prints Markdown.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SHAPES = ((4096, 8192), (3072, 9216))
CAPS = (("2 GiB (default)", 2 << 30, []), ("512 MiB", 512 << 20, ["--max-memory", "512M"]))
FORMATS = ("int8_tensorwise", "convrot_w4a4")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text):
    match = re.fullmatch(r"([\d.]+)([KMG]?)i?B?", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text}: sizes are 4G, 500M")
    return int(float(match[1]) * UNITS[match[2]])


# --- Sources ---


def layers_of(size):
    """(name, rows, columns) of as many layers as have at least `size` bytes."""
    layers, total = [], 0
    while total < size or not layers:
        rows, columns = SHAPES[len(layers) % 2]
        layers.append((f"blocks.{len(layers) // 2}.mlp.fc{len(layers) % 2 + 1}", rows, columns))
        total += rows * columns * 2
    return layers


def header_of(layers):
    header, end = {}, 0
    for name, rows, columns in layers:
        begin, end = end, end + rows * columns * 2
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data begin at a multiple of 64
    return struct.pack("<Q", len(text)) + text, end


def write_sparse(path, size):
    header, data = header_of(layers_of(size))
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + data)


def write_normal(path, size):
    """In pieces of some rows, so that the script never holds a layer."""
    import numpy

    random = numpy.random.default_rng(5)
    layers = layers_of(size)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(header_of(layers)[0])
        for _, rows, columns in layers:
            for _ in range(0, rows, 512):
                values = random.standard_normal((512, columns), numpy.float32) * numpy.float32(0.02)
                bits = values.view(numpy.uint32)
                file.write(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16).tobytes())
    os.replace(partial, path)


# --- Running ---


def drop(*paths):
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()


def run(command, poll=False):
    """(seconds, peak RSS, peak anonymous memory or 0). GNU time starts the command, see run.py."""
    with tempfile.NamedTemporaryFile("r") as report:
        start = time.perf_counter()
        process = subprocess.Popen(["/usr/bin/time", "-q", "-f", "%M", "-o", report.name, *map(str, command)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
        anonymous = 0
        while poll and process.poll() is None:
            anonymous = max(anonymous, anonymous_bytes(process.pid))
            time.sleep(0.02)
        error = process.communicate()[1]
        seconds = time.perf_counter() - start
        if process.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} exited {process.returncode}: {error.decode()}")
        return seconds, int(report.read()) * 1024, anonymous


def anonymous_bytes(parent):
    try:
        child = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        status = pathlib.Path(f"/proc/{child[0]}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) * 1024
    except (OSError, IndexError, TypeError):
        return 0  # not yet, or no more


def warm(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(16 << 20)
        while file.readinto(buffer):
            pass


# --- Speed ---


class Kitchen:
    """The eager encoders on layers of the source, in the arithmetic of f32 (whose bytes are those
    that quantize writes) and of the weight's own bf16."""

    def __init__(self, source, layers, most):
        import torch
        from comfy_kitchen.backends.eager import convrot_w4a4, quantization

        torch.set_num_threads(os.cpu_count())
        self.torch = torch
        self.encoders = {
            "int8_tensorwise": lambda w: quantization.quantize_int8_convrot_weight(w, 256),
            "convrot_w4a4": lambda w: convrot_w4a4.quantize_convrot_w4a4_weight(w, 256),
        }
        step = max(1, len(layers) // most)
        step += step % 2 == 0  # both shapes
        self.names = [name for name, _, _ in layers[::step]][:most]
        self.layers = layers
        sizes = {name: rows * columns for name, rows, columns in layers}
        self.scale = sum(sizes.values()) / sum(sizes[name] for name in self.names)
        self.source = source
        for encode in self.encoders.values():
            encode(torch.randn(64, 256))  # what is imported and set up once

    def measure(self, format_name, dtype):
        from safetensors import safe_open

        start = time.perf_counter()
        with safe_open(self.source, "pt") as file:
            for name in self.names:
                weight = file.get_tensor(f"{name}.weight").to(getattr(self.torch, dtype))
                self.encoders[format_name](weight)
        return (time.perf_counter() - start) * self.scale


def speed(parfait, folder, options):
    source = folder / "source.safetensors"
    layers = layers_of(options.size)
    if not source.exists() or source.stat().st_size != len(header_of(layers)[0]) + header_of(layers)[1]:
        write_normal(source, options.size)
    warm(source)
    copied, ranks, merged = folder / "copy.safetensors", folder / "ranks", folder / "merged.safetensors"
    made = {name: folder / f"{name}.safetensors" for name in FORMATS}
    commands = {
        "`cp`": (["cp", source, copied], copied),
        "`cp` and `sync` of the file": (["sh", "-c", f"cp '{source}' '{copied}' && sync '{copied}'"], copied),
    }
    for name in FORMATS:
        commands[f"`quantize --format {name}`"] = (
            [parfait, "quantize", source, "-o", made[name], "--format", name], None)  # fmt: skip
    commands |= {
        "`convert --to q8_0` to GGUF": (
            [parfait, "convert", source, "-o", folder / "out.gguf", "--to", "q8_0"], folder / "out.gguf"),
        "`convert --to bf16` of the W4A4 file": (
            [parfait, "convert", made["convrot_w4a4"], "-o", folder / "back.safetensors", "--to", "bf16"],
            folder / "back.safetensors"),
        "`verify` of the INT8 file": ([parfait, "verify", source, made["int8_tensorwise"]], None),
        "`shard --tp 2`": ([parfait, "shard", source, "--tp", "2", "-o", ranks], None),
        "`merge`": ([parfait, "merge", ranks, "-o", merged], merged),
    }  # fmt: skip
    kitchen = Kitchen(source, layers, options.sample) if options.kitchen else None
    runs, peers = {name: [] for name in commands}, {}
    for _ in range(options.repeats):
        for name, (command, output) in commands.items():
            # A new file each time, and nothing of the last run still on its way to the disk.
            if "-o" in command:
                drop(pathlib.Path(command[command.index("-o") + 1]))
            os.sync()
            runs[name].append(run(command))
            if output:
                drop(output)
        for name in FORMATS if kitchen else ():
            for dtype in ("float32", "bfloat16"):
                peers.setdefault((name, dtype), []).append(kitchen.measure(name, dtype))
    report_speed(source, runs, peers, kitchen, options)
    if options.split:
        for name in FORMATS:
            split(parfait, source, made[name], name)
    drop(ranks, *made.values())
    if not options.keep:
        drop(source)


def report_speed(source, runs, peers, kitchen, options):
    gigabytes = source.stat().st_size / 1e9
    seconds = {name: statistics.median(s for s, _, _ in samples) for name, samples in runs.items()}
    copy = seconds["`cp`"]
    print(f"{gigabytes:.2f} GB of bf16 in the page cache, {os.cpu_count()} hardware threads, "
          f"medians of {options.repeats} interleaved runs.")  # fmt: skip
    if kitchen:
        print(f"comfy-kitchen: {len(kitchen.names)} of {len(kitchen.layers)} layers, scaled by bytes "
              f"(x {kitchen.scale:.2f}); its files are not written.")  # fmt: skip
    print("\n| | time | share of `cp`'s speed | times kitchen f32 | times kitchen bf16 | peak RSS |\n|---|---|---|---|---|---|")
    for name, samples in runs.items():
        ratios = ["", ""]
        for format_name in FORMATS:
            if kitchen and name == f"`quantize --format {format_name}`":
                ratios = [f"{statistics.median(peers[format_name, dtype]) / seconds[name]:.1f}"
                          for dtype in ("float32", "bfloat16")]  # fmt: skip
        peak = max(peak for _, peak, _ in samples)
        print(f"| {name} | {seconds[name]:.2f} s | {copy / seconds[name]:.0%} | {ratios[0]} | {ratios[1]} "
              f"| {peak / 2**20:.0f} MiB |")  # fmt: skip
    for (name, dtype), samples in peers.items():
        print(f"| comfy-kitchen eager, {name}, {dtype} | {statistics.median(samples):.2f} s "
              f"| {copy / statistics.median(samples):.0%} | | | |")  # fmt: skip
    print(flush=True)


# --- Where the time goes ---

CALLS = {"pwrite64": "write", "pread64": "read back", "fsync": "sync", "fdatasync": "sync",
         "fallocate": "reserve", "madvise": "drop pages", "munmap": "drop pages"}  # fmt: skip


def split(parfait, source, target, name):
    drop(target)
    os.sync()
    trace = subprocess.run(
        ["perf", "trace", "-s", "-o", "/dev/stderr", "-e", ",".join(CALLS), parfait, "quantize", str(source),
         "-o", str(target), "--format", name, "--json"], capture_output=True, text=True)  # fmt: skip
    if trace.returncode != 0:
        print(f"--split: perf trace failed: {trace.stderr.strip().splitlines()[-1:]}")
        return
    seconds = json.loads(trace.stdout)["report"]["seconds"]
    times = {}
    for line in trace.stderr.splitlines():
        fields = line.split()  # syscall calls errors total(ms) min avg max stddev
        if len(fields) >= 4 and fields[0] in CALLS:
            times[CALLS[fields[0]]] = times.get(CALLS[fields[0]], 0) + float(fields[3]) / 1e3
    threads = os.cpu_count()
    print(f"{name}: {seconds:.2f} s traced; in thread seconds of {threads * seconds:.1f}: "
          + ", ".join(f"{what} {t:.2f}" for what, t in times.items())
          + f"; the rest, {threads * seconds - sum(times.values()):.2f}, is the encoder, page faults of the source, "
            "and threads that wait for the sync\n", flush=True)  # fmt: skip


# --- Memory ---


def memory(parfait, folder, options):
    source = folder / "sparse.safetensors"
    write_sparse(source, options.sparse)
    low, ranks, out = folder / "sparse_w4a4.safetensors", folder / "sparse_ranks", folder / "sparse_out"
    print(f"{source.stat().st_size / 1e9:.2f} GB of bf16 zeros, a sparse file:\n")
    print("| | `--max-memory` | time | peak RSS | anonymous | share of the cap |\n|---|---|---|---|---|---|")
    verbs = [(f"quantize --format {name}", [parfait, "quantize", source, "--format", name, "-o", low], CAPS)
             for name in FORMATS]  # fmt: skip
    gguf = folder / "sparse.gguf"
    verbs += [
        ("convert --to q8_0 (GGUF)", [parfait, "convert", source, "--to", "q8_0", "-o", gguf], CAPS),
        ("convert W4A4 --to bf16", [parfait, "convert", low, "--to", "bf16", "-o", out], CAPS),
        ("verify", [parfait, "verify", source, low, "--threshold", "1"], CAPS[:1]),
        ("shard --tp 2", [parfait, "shard", source, "--tp", "2", "-o", ranks], CAPS[:1]),
        ("merge", [parfait, "merge", ranks, "-o", out], CAPS[:1]),
    ]
    over = []
    for name, command, caps in verbs:
        for cap_name, cap, arguments in caps:
            seconds, peak, anonymous = run([*command, *arguments], poll=True)
            print(f"| `{name}` | {cap_name if len(caps) > 1 else '(no option)'} | {seconds:.1f} s "
                  f"| {peak / 2**20:.0f} MiB | {anonymous / 2**20:.0f} MiB | {peak / cap:.0%} |", flush=True)  # fmt: skip
            if peak > cap:
                over.append(f"{name} under {cap_name}")
            drop(out, gguf)
    drop(source, low, ranks, out, gguf)
    print()
    if over:
        sys.exit(f"over the cap: {', '.join(over)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parfait", type=os.path.abspath)
    parser.add_argument("--size", type=size_of, default=4 << 30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sparse", type=size_of, default=12 << 30)
    parser.add_argument("--sample", type=int, default=8, help="layers that comfy-kitchen encodes")
    parser.add_argument("--no-kitchen", dest="kitchen", action="store_false")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/quantize"))
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    made_folder = not options.folder.exists()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.size:
        speed(options.parfait, options.folder, options)
    if options.sparse:
        memory(options.parfait, options.folder, options)
    if made_folder and not options.keep and not any(options.folder.iterdir()):
        options.folder.rmdir()


if __name__ == "__main__":
    main()
