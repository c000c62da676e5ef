#!/usr/bin/env python3
"""Measures the parfait program on headers as large as real ones, and its layers on real shapes.

usage: bench/run.py build/release/parfait [--repeats 15] [--json out.json]

Everything is made in a temporary folder. Commands are interleaved, and medians of wall time and the
largest resident set of any repeat are reported. Where this Python has the safetensors package, opening
a file with it is measured in the same run as a peer (it parses the header and does no more).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MAKE_HEADER = os.path.join(HERE, "..", "tools", "make_h3_header.py")


def measure(command):
    """Runs a command with its output thrown away; returns (seconds, peak resident bytes).

    GNU time starts the command: a child of this interpreter would be charged with the interpreter's own
    resident set, which it holds until it becomes the command.
    """
    with tempfile.NamedTemporaryFile("r") as report:
        start = time.perf_counter()
        done = subprocess.run(
            ["/usr/bin/time", "-q", "-f", "%M", "-o", report.name, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} exited {done.returncode}: {done.stderr.decode()}")
        return seconds, int(report.read()) * 1024


def interleaved(commands, repeats):
    """commands: {name: argv}. Returns {name: (median seconds, peak resident bytes)}."""
    runs = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            runs[name].append(measure(command))
    return {
        name: (statistics.median(s for s, _ in samples), max(r for _, r in samples))
        for name, samples in runs.items()
    }


def peer_open(path, repeats):
    """Median seconds in which the safetensors package opens the file and lists its names."""
    try:
        from safetensors import safe_open
        import numpy  # noqa: F401  (the framework that safe_open is asked for)
    except ImportError:
        return None
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        with safe_open(path, framework="np") as f:
            list(f.keys())
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parfait")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    parfait = os.path.abspath(options.parfait)
    results = {"machine": {"cpu": cpu_name(), "cores": os.cpu_count()}, "commands": {}, "headers": {}}

    with tempfile.TemporaryDirectory(prefix="parfait-bench-") as folder:
        h3 = os.path.join(folder, "minimax_h3_mixed.safetensors")
        subprocess.run([sys.executable, MAKE_HEADER, h3], check=True, stdout=subprocess.DEVNULL)
        print(f"machine: {cpu_name()}, {os.cpu_count()} cores; medians of {options.repeats}")
        print(f"\nMiniMax-H3 mixed export, {os.path.getsize(h3) / 1e9:.2f} GB logical, 932 tensors")
        print(f"{'command':34} {'ms':>8} {'peak RSS':>12}")
        measured = interleaved(
            {
                "--version (process start)": [parfait, "--version"],
                "inspect": [parfait, "inspect", h3],
                "inspect --io pread": [parfait, "inspect", h3, "--io", "pread"],
                "check": [parfait, "check", h3],
                "plan": [parfait, "plan", h3],
                "plan --tp 8": [parfait, "plan", h3, "--tp", "8"],
            },
            options.repeats,
        )
        for name, (seconds, resident) in measured.items():
            print(f"{name:34} {seconds * 1e3:8.1f} {resident / 2**20:8.1f} MiB")
            results["commands"][name] = {"ms": seconds * 1e3, "peak_rss_bytes": resident}
        peer = peer_open(h3, options.repeats)
        if peer is not None:
            print(f"{'safetensors safe_open, in process':34} {peer * 1e3:8.1f}")
            results["commands"]["peer: safetensors safe_open"] = {"ms": peer * 1e3}

        print("\nheaders of many tensors, each a plain layer-less vector: check")
        print(f"{'tensors':>10} {'ms':>8} {'us/tensor':>10} {'peak RSS':>12} {'peer ms':>9}")
        for tensors in (12_500, 25_000, 50_000, 100_000, 1_000_000):
            path = os.path.join(folder, f"many_{tensors}.safetensors")
            subprocess.run(
                [sys.executable, MAKE_HEADER, path, "--tensors", str(tensors)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            repeats = max(3, options.repeats // (1 if tensors <= 100_000 else 5))
            command = [parfait, "check", path, "--max-header", "1000000000"]
            seconds, resident = interleaved({"check": command}, repeats)["check"]
            peer = peer_open(path, 3)
            print(
                f"{tensors:10} {seconds * 1e3:8.1f} {seconds / tensors * 1e6:10.2f} "
                f"{resident / 2**20:8.1f} MiB {'' if peer is None else f'{peer * 1e3:9.1f}'}"
            )
            results["headers"][str(tensors)] = {
                "ms": seconds * 1e3,
                "peak_rss_bytes": resident,
                "peer_ms": None if peer is None else peer * 1e3,
            }
            os.remove(path)

        print("\nrunning layers of the H3 file (its data are zeros: a sparse file), one layer at a time")
        for rows in (1, 256):
            command = [parfait, "run", h3, "--layers", "blocks.0.*", "--rows", str(rows)]
            seconds, resident = interleaved({"run": command}, 3)["run"]
            print(f"run --layers blocks.0.* --rows {rows:<5} {seconds * 1e3:8.1f} ms {resident / 2**20:8.1f} MiB peak RSS")
            results["commands"][f"run blocks.0.* rows {rows}"] = {
                "ms": seconds * 1e3,
                "peak_rss_bytes": resident,
            }

    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
