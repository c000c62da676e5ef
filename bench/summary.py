#!/usr/bin/env python3
"""Turns results of `parfait bench --json` into a table in Markdown.

usage: bench/summary.py RESULT.json...

One row a shape and number of rows: the project's kernels as a share of the peak of the unit that they use,
measured around them, and how many times as fast as each peer they were in the same run.
"""

import json
import sys


def table(result):
    entries = {}
    for entry in result["linear"]:
        entries.setdefault((entry["shape"], entry["M"]), {})[entry["what"]] = entry
    peaks = result["peaks"]
    peers = [w for w in dict.fromkeys(e["what"] for e in result["linear"])
             if not w.endswith(" layer") and w not in {f"{f} product" for f in ("int8", "w4a4", "w4a8", "w6a8")}]
    lines = [
        f"{result['machine']}.",
        "",
        f"{result['threads']} threads, medians of {result['repeats']}. Peaks: VNNI {peaks['vnni_gops']:.0f} GOP/s, bf16 "
        f"{peaks['bf16_gflops']:.0f} and f32 {peaks['f32_gflops']:.0f} GFLOP/s, memory read {peaks['read_gbs']:.1f} and copy "
        f"{peaks['copy_gbs']:.1f} GB/s. Peers: {', '.join(result['peers'])}.",
        "",
        "Product alone and whole layer (bf16 in and out, ConvRot 256), GOP/s and share of the VNNI peak; *quantise*: rotation, row "
        "maximum and codes, share of the INT8 layer's time; *read*: packed weight bytes over time, share of the read bandwidth.",
        "",
    ]
    head = ["shape", "N × K", "M", "int8", "w4a4", "w4a8", "w6a8", "int8 layer", "w4a4 layer", "w4a8 layer", "w6a8 layer",
            "quantise", "read int8 / w4a4"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (shape, rows), e in entries.items():
        row = [shape, f"{e['int8 product']['N']} × {e['int8 product']['K']}", str(rows)]
        for kind in ("product", "layer"):
            for code in ("int8", "w4a4", "w4a8", "w6a8"):
                one = e.get(f"{code} {kind}")
                row.append(f"{one['gops']:.0f} ({100 * one['gops'] / one['peak_gops']:.0f} %)" if one and one["peak_gops"] else "")
        row.append(f"{100 * e['int8 layer']['quantize_share']:.1f} %")
        shares = [e[f"{code} product"] for code in ("int8", "w4a4")]
        row.append(" / ".join(f"{100 * s['weight_bytes'] / s['seconds'] / 1e9 / peaks['read_gbs']:.0f} %" for s in shares)
                   if rows <= 4 else "")
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "How many times as fast: the INT8 product against oneDNN's, and the INT8 / W4A4 layer against the others.", ""]
    head = ["shape", "M", "oneDNN int8 product"] + [p for p in peers if p != "oneDNN int8 product"]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (shape, rows), e in entries.items():
        row = [shape, str(rows)]
        for peer in head[2:]:
            other = e.get(peer)
            if not other:
                row.append("")
            elif peer == "oneDNN int8 product":
                row.append(f"{other['seconds'] / e['int8 product']['seconds']:.2f}")
            else:
                row.append(" / ".join(f"{other['seconds'] / e[f'{mine} layer']['seconds']:.2f}" for mine in ("int8", "w4a4")))
        lines.append("| " + " | ".join(row) + " |")
    if result.get("packing"):
        rates = {}
        for p in result["packing"]:
            rates.setdefault(p["kernel"], []).append((p["bytes"] / p["seconds"] / 1e9, 100 * p["copy_seconds"] / p["seconds"]))
        lines += ["", "Packing at load, GB/s of packed bytes (share of the speed of a copy of as many, in turn with it), lowest to highest: " +
                  "; ".join(f"{k} {min(r)[0]:.1f} to {max(r)[0]:.1f} ({min(s for _, s in r):.0f} to "
                            f"{max(s for _, s in r):.0f} %)" for k, r in rates.items()) + "."]
    for a in result.get("attention", []):
        lines += ["", f"Attention, {a['what']}, {a['queries']} queries, {a['keys']} keys, {a['heads']} heads × {a['head_size']}: "
                  f"{a['seconds'] * 1e3:.0f} ms, {a['gflops']:.0f} GFLOP/s, {100 * a['gflops'] / a['peak_gflops']:.0f} % of the bf16 peak."]
    return lines


for i, path in enumerate(sys.argv[1:]):
    with open(path, encoding="utf-8") as file:
        print("\n".join(([""] if i else []) + table(json.load(file))))
