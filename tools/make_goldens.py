#!/usr/bin/env python3
"""Write the golden files under tests/golden with comfy-kitchen as the reference.

Each case becomes two files in tests/golden/formats:

  <case>.safetensors            a tiny checkpoint, stored the way ComfyUI stores it
  <case>.expected.safetensors   what comfy-kitchen's eager (pure PyTorch, CPU)
                                functions make of it

Two multi-layer files (pair, all_formats) and one table file
(tests/golden/codecs.safetensors) come with them.  tests/golden/README.md
explains every tensor name.

    python tools/make_goldens.py                # write everything
    python tools/make_goldens.py --only int8    # cases whose name has "int8"
    python tools/make_goldens.py --measure      # write nothing, print how far the
                                                # eager bf16/f16 results are from a
                                                # pure f32 computation

Everything is seeded by the case name, so a rerun with the same package
versions on the same kind of CPU gives the same bytes.
"""

import argparse
import json
import os
import struct
import zlib
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import convrot_w4a4 as k_w4a4
from comfy_kitchen.backends.eager import quantization as k_q
from comfy_kitchen.backends.eager import w4a8_int8 as k_w4a8
from comfy_kitchen.backends.eager import awq as k_awq
from comfy_kitchen.backends.eager import svdquant as k_sv
from comfy_kitchen import float_utils as k_fu
from comfy_kitchen.tensor.awq_w4a16 import TensorCoreAWQW4A16Layout
from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout
from comfy_kitchen.tensor.int8_utils import (_build_hadamard, _rotate_activation,
                                             _rotate_weight)
from comfy_kitchen.tensor.mxfp8 import TensorCoreMXFP8Layout
from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout
from comfy_kitchen.tensor.w4a8_packed import _pack_codes, _unpack_codes

KITCHEN = "comfy-kitchen " + version("comfy-kitchen")
TORCH = "torch " + torch.__version__

LAYER = "blocks.0.mlp.fc1"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CODE = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


# ---------------------------------------------------------------------------
# Inputs

def rng(name):
    """A generator that depends only on the name."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def make_weight(name, n, k, dtype=torch.bfloat16, special=True):
    """Gaussian rows; with `special`, row 1 is all zero and row 2 has one outlier."""
    w = torch.randn(n, k, generator=rng("w:" + name)) * 0.04
    if special:
        w[1] = 0.0
        w[2, k // 3] = -2.75
    return w.to(dtype)


def make_x(name, m, k):
    """M input rows: plain, one with an outlier, a small one, a zero one, a constant one."""
    x = torch.randn(m, k, generator=rng("x:" + name))
    if m > 1:
        x[1, k // 2 + 3] = 23.5
    if m > 2:
        x[2] *= 0.01
    if m > 3:
        x[3] = 0.0
    if m > 4:
        x[4] = 0.75
    return x


def make_bias(name, n, dtype=torch.bfloat16):
    return (torch.randn(n, generator=rng("b:" + name)) * 0.5).to(dtype)


def marker(**fields):
    """The .comfy_quant tensor: json.dumps bytes as U8."""
    return torch.tensor(list(json.dumps(fields).encode("utf-8")), dtype=torch.uint8)


# ---------------------------------------------------------------------------
# The f32 pipelines: what the engine computes when it does not imitate the
# rounding of every eager step.  This is our own arithmetic, not kitchen's.

def f32_act(x, group, levels):
    """Rotate in f32 and quantize every row to -levels..levels."""
    x = x.float()
    if group:
        x = _rotate_activation(x, _build_hadamard(group, dtype=torch.float32), group)
    scale = (x.abs().amax(-1, keepdim=True) / levels).clamp(min=1e-30)
    return (x / scale).round().clamp(-128 if levels == 127 else -7, levels), scale


def f32_linear(x, codes, wscale, bias, out, group, levels):
    """Exact integer sums, f32 epilogue acc*(s_x*s_w)+bias, one rounding to `out`."""
    q, s = f32_act(x, group, levels)
    acc = q.double() @ codes.double().t()      # exact: |acc| < 2^53
    y = acc.float() * (s * wscale.float().reshape(1, -1))
    if bias is not None:
        y = y + bias.float()
    return y.to(out)


# ---------------------------------------------------------------------------
# Cases.  A case holds the stored tensors (by suffix), functions for the
# reference results and the words for the metadata.

class Case:
    def __init__(self, name, fmt, tensors, mark, decode, linear, *, m=3, bias=True,
                 group=0, quant_group=0, act="none", by="", decode64=None, x_scale=None,
                 extra=None, note="", bias_dtype=torch.bfloat16):
        self.name, self.fmt, self.tensors, self.mark = name, fmt, tensors, mark
        self.decode, self.linear, self.decode64 = decode, linear, decode64
        self.m, self.group, self.quant_group, self.act = m, group, quant_group, act
        self.by, self.note, self.extra, self.x_scale = by, note, extra, x_scale
        self.n, self.k = decode(torch.float32).shape
        self.bias = make_bias(name, self.n, bias_dtype) if bias else None

    def checkpoint(self, layer=LAYER):
        out = {f"{layer}.weight{s}" if s[:1] in ("", "_") else f"{layer}.{s[1:]}": t
               for s, t in self.tensors.items()}
        if self.mark is not None:
            out[layer + ".comfy_quant"] = marker(**self.mark)
        if self.bias is not None:
            out[layer + ".bias"] = self.bias
        return out

    def expected(self):
        out = {}
        x32 = make_x(self.name, self.m, self.k)
        for t, dt in TYPES.items():
            x = x32.to(dt)
            out["x." + t] = x
            out["decode." + t] = self.decode(dt)
            out["y." + t] = self.linear(x, None, dt)
            if self.bias is not None:
                out["y_bias." + t] = self.linear(x, self.bias, dt)
            if self.extra:
                for key, value in self.extra(x, self.bias, dt).items():
                    out[f"{key}.{t}"] = value
        if self.decode64 is not None:
            w64 = self.decode64()
            x64 = x32.double()
            if self.x_scale is not None:
                x64 = x64 * self.x_scale.double()
            out["y64"] = x64 @ w64.t()
            d = out["decode.f32"].double()
            assert torch.allclose(d, w64, rtol=3e-7, atol=1e-12), self.name
        for key, value in out.items():
            assert torch.isfinite(value.float()).all(), (self.name, key)
        return out

    def metadata(self):
        meta = {
            "case": self.name,
            "format": self.fmt,
            "group": str(self.group),
            "quant_group": str(self.quant_group),
            "act": self.act,
            "made_by": f"{KITCHEN}, {TORCH}, eager backend on CPU: {self.by}",
        }
        if self.mark is not None:
            meta["marker"] = json.dumps(self.mark)
        if self.decode64 is not None:
            meta["y64"] = "float64 product of x.f32 and the exact decode, no bias (own arithmetic)"
        if self.note:
            meta["note"] = self.note
        return meta


def torch_linear(x, w, bias):
    return F.linear(x, w, None if bias is None else bias.to(x.dtype))


# -- INT8 -------------------------------------------------------------------

def int8_case(name, q, scale, group=0, *, mark=None, m=3, bias=True, note="", by=""):
    """`scale` is stored in the shape it has; kitchen's decode wants [N,1] or a scalar."""
    s = scale if scale.numel() == 1 else scale.reshape(-1, 1)
    if mark is None:
        mark = {"format": "int8_tensorwise"}
        if group:
            mark.update(convrot=True, convrot_groupsize=group)

    def decode(dt):
        if group:
            return k_q.dequantize_int8_convrot_weight_dtype(q, s, group, CODE[dt])
        return k_q.dequantize_int8_simple_dtype(q, s, CODE[dt])

    def linear(x, b, dt):
        return k_q.int8_linear(x, q, scale, b, dt, convrot=bool(group),
                               convrot_groupsize=group or 256)

    def extra(x, b, dt):
        out = {"y_f32path": f32_linear(x, q, scale, None, dt, group, 127)}
        if b is not None:
            out["y_bias_f32path"] = f32_linear(x, q, scale, b, dt, group, 127)
        return out

    dec = "dequantize_int8_convrot_weight_dtype" if group else "dequantize_int8_simple_dtype"
    return Case(name, "int8_tensorwise", {"": q, "_scale": scale}, mark, decode, linear, m=m,
                bias=bias, group=group, act="int8", extra=extra, note=note,
                by=f"weight by {by}; decode by quantization.{dec}; y by quantization.int8_linear; "
                   "*_f32path is make_goldens.py's own f32 pipeline")


def int8_cases():
    w = make_weight("int8_scalar", 7, 256)
    q, s = k_q.quantize_int8_tensorwise(w)
    assert s.dim() == 0
    yield int8_case("int8_scalar", q, s, m=3, by="quantization.quantize_int8_tensorwise (bf16)")

    # A row whose extreme is negative: the two bf16 roundings store it as -128.
    w = make_weight("int8_row_n1", 9, 512)
    w[4] = w[4].clamp(-0.1, 0.1)
    w[4, 100] = -2.8125
    q, s = k_q.quantize_int8_rowwise(w)
    assert (q[4] == -128).any() and s.shape == (9, 1) and (q[1] == 0).all()
    yield int8_case("int8_row_n1", q, s, m=5, by="quantization.quantize_int8_rowwise (bf16)",
                    mark={"format": "int8_tensorwise", "per_row": True},
                    note="row 1 is zero, row 2 has an outlier, row 4 holds code -128; input row 3 "
                         "is zero and input row 4 is constant")

    w = make_weight("int8_row_n", 5, 256, torch.float32)
    q, s = k_q.quantize_int8_rowwise(w)
    yield int8_case("int8_row_n", q, s.reshape(-1), m=1, bias=False,
                    by="quantization.quantize_int8_rowwise (f32), scale reshaped to [N]",
                    note="kitchen's decode cannot broadcast a [N] scale over rows; it was given "
                         "[N,1]. int8_linear takes [N] as it is")

    q = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).repeat(3, 1)
    q[1] = q[1].flip(0)
    q[2] = torch.roll(q[2], 77)
    s = torch.tensor([[0.0078125], [0.0123456], [3.25e-5]])
    yield int8_case("int8_all_codes", q.contiguous(), s, m=3, by="hand: every code -128..127")

    for group, n, k, m in ((16, 8, 256, 3), (64, 6, 512, 5), (256, 11, 512, 3)):
        name = f"int8_convrot{group}"
        w = make_weight(name, n, k)
        w[3] = -w[3].abs() * 0.5 - 0.03      # mostly one sign: rotated extremes go negative
        q, s = k_q.quantize_int8_convrot_weight(w, group)
        yield int8_case(name, q, s, group, m=m,
                        by=f"quantization.quantize_int8_convrot_weight(group {group}, bf16)",
                        note=f"codes -128 present: {bool((q == -128).any())}")

    q = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).repeat(3, 1)
    q[1] = torch.roll(q[1], 31)
    q[2] = q[2].reshape(16, 16).t().reshape(-1)
    s = torch.tensor([[0.01], [0.002], [0.75]])
    yield int8_case("int8_convrot256_all_codes", q.contiguous(), s, 256, m=1,
                    by="hand: every code -128..127")


# -- W4A4 -------------------------------------------------------------------

def w4a4_case(name, q, scale, group, *, act="int4", m=3, mark=None, note="", by="", bias=True):
    if mark is None:
        mark = {"format": "convrot_w4a4", "convrot_groupsize": group}
        if act == "int8":
            mark["linear_dtype"] = "int8"
    wide = k_w4a4.prepare_int4_weight_for_int8_linear(q)

    def int8(x, b, dt):
        return k_q.int8_linear(x, wide, scale, b, dt, convrot=True, convrot_groupsize=group)

    def int4(x, b, dt):
        return k_w4a4.convrot_w4a4_linear(x, q, scale, b, convrot_groupsize=group)

    def decode(dt):
        return k_w4a4.dequantize_convrot_w4a4_weight(q, scale, group, output_dtype=dt)

    def extra(x, b, dt):
        levels = 127 if act == "int8" else 7
        out = {"y_f32path": f32_linear(x, wide, scale, None, dt, group, levels)}
        if b is not None:
            out["y_bias_f32path"] = f32_linear(x, wide, scale, b, dt, group, levels)
        if act == "int4":
            out["y_act8"] = int8(x, None, dt)
        return out

    how = ("quantization.int8_linear(convrot) on prepare_int4_weight_for_int8_linear(weight) with "
           "the same row scales" if act == "int8" else "convrot_w4a4.convrot_w4a4_linear (int4 "
           "activations); y_act8 by quantization.int8_linear(convrot) on the codes widened to int8")
    return Case(name, "convrot_w4a4", {"": q, "_scale": scale}, mark, decode,
                int8 if act == "int8" else int4, m=m, group=group, act=act, extra=extra, note=note,
                bias=bias,
                by=f"weight by {by}; decode by convrot_w4a4.dequantize_convrot_w4a4_weight; y by "
                   f"{how}; *_f32path is make_goldens.py's own f32 pipeline")


def w4a4_cases():
    for group, n, k, m in ((16, 8, 256, 3), (64, 7, 512, 5), (256, 10, 512, 3)):
        w = make_weight(f"w4a4_rot{group}", n, k)
        q, s = k_w4a4.quantize_convrot_w4a4_weight(w, group)
        assert s.shape == (n,) and q.shape == (n, k // 2)
        by = f"convrot_w4a4.quantize_convrot_w4a4_weight(group {group}, bf16)"
        for act in ("int4", "int8"):
            yield w4a4_case(f"w4a4_rot{group}_{act}", q, s, group, act=act, m=m, by=by)

    w = make_weight("w4a4_f32src", 5, 256, torch.float32)
    q, s = k_w4a4.quantize_convrot_w4a4_weight(w, 256)
    yield w4a4_case("w4a4_full_marker", q, s, 256, act="int8", m=1, bias=False,
                    by="convrot_w4a4.quantize_convrot_w4a4_weight(group 256, f32)",
                    mark={"format": "convrot_w4a4", "convrot_groupsize": 256,
                          "quant_group_size": 64, "linear_dtype": "int8"},
                    note="the long marker third-party exporters write")

    q = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.int8).repeat(3, 1)
    q[1] = q[1].flip(0)
    q[2] = torch.roll(q[2], 100)
    s = torch.tensor([0.125, 0.0371, 2.5e-4])
    yield w4a4_case("w4a4_all_bytes", q.contiguous(), s, 256, m=3,
                    by="hand: every byte 0..255, so nibble -8 occurs")


# -- W4A8 / W6A8 ------------------------------------------------------------

def w4a8_case(name, parts, group_size, rot, *, m=3, note="", by="", mark=None, bias=True):
    q, s_rel, s_ch, corr, book = parts
    bits = 6 if q.shape[1] * 8 == s_rel.shape[1] * group_size * 6 else 4
    fmt = "w6a8_int8" if bits == 6 else "asym_w4a8_int8"
    tensors = {"": q, "_s_rel": s_rel, "_s_channel": s_ch}
    if book is not None:
        tensors["_codebook"] = book
    if corr is not None:
        tensors["_correction"] = corr
    if mark is None:
        mark = {"format": fmt, "group_size": group_size, "convrot_groupsize": rot}
    w8 = k_w4a8._dequant_int4_grouped_to_int8(q, s_rel, book, group_size)

    def decode(dt):
        return k_w4a8.dequantize_w4a8_int8_weight(q, s_rel, s_ch, book, corr, group_size, rot, dt)

    def linear(x, b, dt):
        # With a correction kitchen runs a plain F.linear, which wants the bias in x's type.
        if corr is not None and b is not None:
            b = b.to(x.dtype)
        return k_w4a8.w4a8_int8_linear(x, q, s_rel, s_ch, book, corr, b, group_size, rot, dt)

    def extra(x, b, dt):
        if corr is not None:
            return {}
        out = {"y_f32path": f32_linear(x, w8, s_ch, None, dt, rot, 127)}
        if b is not None:
            out["y_bias_f32path"] = f32_linear(x, w8, s_ch, b, dt, rot, 127)
        return out

    case = Case(name, fmt, tensors, mark, decode, linear, m=m, group=rot, quant_group=group_size,
                act="none" if corr is not None else "int8", extra=extra, note=note, bias=bias,
                by=f"weight by {by}; decode by w4a8_int8.dequantize_w4a8_int8_weight; w8 by "
                   "w4a8_int8._dequant_int4_grouped_to_int8; y by w4a8_int8.w4a8_int8_linear; "
                   "*_f32path is make_goldens.py's own f32 pipeline")
    base = case.expected
    case.expected = lambda: {**base(), "w8": w8}
    return case


def w4a8_cases():
    quant = k_w4a8.quantize_w4a8_int8_weight
    fixed = torch.tensor(k_w4a8._FIXED_LUT, dtype=torch.float32)

    w = make_weight("w4a8_g16", 9, 512)
    p = quant(w, 16, 256)
    assert torch.equal(p[4], fixed)
    yield w4a8_case("w4a8_g16_fixed", p, 16, 256, m=5,
                    by="w4a8_int8.quantize_w4a8_int8_weight(group 16, bf16), fixed codebook")

    # Rotation makes weights Gaussian; un-rotating heavy-tailed rows first keeps them heavy.
    w = torch.randn(8, 256, generator=rng("w4a8_fit")) ** 5 * 0.05
    w = _rotate_weight(w, _build_hadamard(16), 16).to(torch.bfloat16)
    w[1] = 0.0
    p = quant(w, 16, 16)
    assert not torch.equal(p[4], fixed)
    yield w4a8_case("w4a8_g16_fitted", p, 16, 16,
                    by="w4a8_int8.quantize_w4a8_int8_weight(group 16, rotation 16, bf16), "
                       "heavy-tailed, so a fitted codebook")

    w = make_weight("w4a8_g32", 6, 512)
    yield w4a8_case("w4a8_g32", quant(w, 32, 256), 32, 256,
                    mark={"format": "asym_w4a8_int8", "group_size": 32, "convrot": True,
                          "convrot_groupsize": 256},
                    by="w4a8_int8.quantize_w4a8_int8_weight(group 32, bf16)")

    w = make_weight("w4a8_g8", 5, 192)
    yield w4a8_case("w4a8_g8_rot64", quant(w, 8, 64), 8, 64, m=1, bias=False,
                    by="w4a8_int8.quantize_w4a8_int8_weight(group 8, rotation 64, bf16)")

    w = make_weight("w4a8_nobook", 6, 256)
    p = quant(w, 16, 256, codebook=False)
    assert p[3] is None and p[4] is None
    yield w4a8_case("w4a8_g16_nocodebook", p, 16, 256,
                    by="w4a8_int8.quantize_w4a8_int8_weight(codebook=False, bf16)")

    w = make_weight("w4a8_srel32", 5, 256)
    p = quant(w, 16, 256, scale_dtype=torch.float32)
    yield w4a8_case("w4a8_g16_srel_f32", p, 16, 256, m=1,
                    by="w4a8_int8.quantize_w4a8_int8_weight(scale_dtype=float32, bf16)")

    for dt, tag in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        w = (make_weight("w4a8_corr", 6, 256).float() + 0.05).to(dt)
        p = quant(w, 16, 64, symmetric=False)
        assert p[3].shape == (16, 6) and p[3].dtype == dt and p[4] is None
        yield w4a8_case(f"w4a8_g16_correction_{tag}", p, 16, 64,
                        by=f"w4a8_int8.quantize_w4a8_int8_weight(symmetric=False, {tag})",
                        note="ComfyUI does not load weight_correction")

    for g, n, k, m in ((16, 8, 256, 3), (32, 6, 512, 5)):
        w = make_weight(f"w6a8_g{g}", n, k)
        p = quant(w, g, 256, bits=6)
        assert p[0].shape == (n, k * 3 // 4) and p[3] is None and p[4] is None
        mark = {"format": "w6a8_int8", "group_size": g, "convrot": True, "convrot_groupsize": 256}
        if g == 32:
            del mark["convrot"]
        yield w4a8_case(f"w6a8_g{g}", p, g, 256, m=m, mark=mark,
                        by=f"w4a8_int8.quantize_w4a8_int8_weight(bits=6, group {g}, bf16)")


# -- FP8 --------------------------------------------------------------------

def fp8_case(name, dt8, input_scale, *, n=8, k=256, m=3, full=None, scale_shape=()):
    w = make_weight(name, n, k)
    q, params = TensorCoreFP8Layout.quantize(w, dtype=dt8)
    s = params.scale.float().reshape(scale_shape)
    fmt = "float8_e4m3fn" if dt8 == torch.float8_e4m3fn else "float8_e5m2"
    mark = {"format": fmt}
    if full is not None:
        mark["full_precision_matrix_mult"] = full
    tensors = {"": q, "_scale": s}
    s_in = torch.tensor(1.0 if input_scale is None else input_scale)
    if input_scale is not None:
        tensors[".input_scale"] = s_in

    def decode(dt):
        return k_q.dequantize_per_tensor_fp8(q, s, dt)

    def exact():
        return q.double() * s.double()

    def extra(x, b, dt):
        # What a hardware fp8 matmul would see: the activation in fp8 as well.
        x8 = k_q.quantize_per_tensor_fp8(x, s_in, torch.float8_e4m3fn)
        return {"x8": x8, "y64_act8": (x8.double() * s_in.double()) @ exact().t()}

    return Case(name, fmt, tensors, mark, decode, lambda x, b, dt: torch_linear(x, decode(dt), b),
                m=m, decode64=exact, extra=extra,
                by="weight by TensorCoreFP8Layout.quantize (bf16); decode by "
                   "quantization.dequantize_per_tensor_fp8; y is torch's F.linear of decode.T and "
                   "x.T (kitchen's scaled_mm needs a GPU); x8 by quantization."
                   "quantize_per_tensor_fp8 with input_scale (1.0 when absent), y64_act8 its "
                   "float64 product with the exact weight")


def fp8_cases():
    yield fp8_case("fp8_e4m3", torch.float8_e4m3fn, None)
    yield fp8_case("fp8_e4m3_input_scale", torch.float8_e4m3fn, 0.0625, n=5, k=512)
    yield fp8_case("fp8_e4m3_full_precision", torch.float8_e4m3fn, None, n=3, m=1, full=True,
                   scale_shape=(1,))
    yield fp8_case("fp8_e5m2", torch.float8_e5m2, None, n=6)
    yield fp8_case("fp8_e5m2_input_scale", torch.float8_e5m2, 0.03125, n=4, m=5)


# -- NVFP4 / MXFP8 ----------------------------------------------------------

def unswizzle(t, rows, cols):
    return k_fu.from_blocked(t.reshape(-1), rows, cols)


def nvfp4_case(name, n, k, *, m=3, pqs=False, bias=True, mark=None, logical=None):
    w = make_weight(name, n, k)
    w[0, :16] = 0.0                              # an all-zero block
    w[min(3, n - 1), 16:32] *= 1e-6              # a block whose scale underflows
    q, p = TensorCoreNVFP4Layout.quantize(w)
    bs, ts = p.block_scale, p.scale
    rows, cols = q.shape[0], q.shape[1] * 2
    tensors = {"": q, "_scale": bs, "_scale_2": ts}
    scale = None
    if pqs:
        scale = torch.rand(k, generator=rng("pqs:" + name)) * 1.5 + 0.25
        tensors[".pre_quant_scale"] = scale

    def decode(dt):
        return k_q.dequantize_nvfp4(q, ts, bs, dt)

    def exact():
        codes = k_fu.fp4_x2_to_f32(q).double()
        s = unswizzle(bs.float(), rows, cols // 16).double() * ts.double()
        return (codes.view(rows, -1, 16) * s.unsqueeze(-1)).view(rows, cols)

    def linear(x, b, dt):
        if scale is not None:
            x = x * scale.to(dt)
        return torch_linear(x, decode(dt), b)

    note = "weight_scale is stored swizzled in 128x4 tiles"
    if pqs:
        note += "; y is of x.T * pre_quant_scale rounded to T"
    if rows != n:
        note += f"; the model's layer has {n} rows, the writer padded them to {rows}"
    return Case(name, "nvfp4", tensors, mark or {"format": "nvfp4"}, decode, linear, m=m,
                quant_group=16, decode64=exact, x_scale=scale, bias=bias, note=note,
                by="weight by TensorCoreNVFP4Layout.quantize (bf16); decode by "
                   "quantization.dequantize_nvfp4; y is torch's F.linear of decode.T and x.T "
                   "(kitchen's scaled_mm needs a GPU)")


def mxfp8_case(name, n, k, *, m=3, bias=True, as_u8=False):
    w = make_weight(name, n, k)
    w[0, :32] = 0.0
    w[min(3, n - 1), 32:64] *= 1e-6
    q, p = TensorCoreMXFP8Layout.quantize(w)
    bs = p.scale
    rows, cols = q.shape

    def decode(dt):
        return k_q.dequantize_mxfp8(q, bs, dt)

    def exact():
        s = k_fu.e8m0_to_f32(unswizzle(bs.view(torch.uint8), rows, cols // 32)).double()
        return (q.double().view(rows, -1, 32) * s.unsqueeze(-1)).view(rows, cols)

    note = "weight_scale is stored swizzled in 128x4 tiles"
    if rows != n:
        note += f"; the model's layer has {n} rows, the writer padded them to {rows}"
    return Case(name, "mxfp8", {"": q, "_scale": bs.view(torch.uint8) if as_u8 else bs},
                {"format": "mxfp8"}, decode, lambda x, b, dt: torch_linear(x, decode(dt), b), m=m,
                quant_group=32, decode64=exact, bias=bias, note=note,
                by="weight by TensorCoreMXFP8Layout.quantize (bf16); decode by "
                   "quantization.dequantize_mxfp8; y is torch's F.linear of decode.T and x.T "
                   "(kitchen's scaled_mm needs a GPU)")


def block_cases():
    yield nvfp4_case("nvfp4_small", 16, 256)
    yield nvfp4_case("nvfp4_aligned", 128, 64, m=1)
    yield nvfp4_case("nvfp4_rowpad", 5, 256, m=1, bias=False)
    yield nvfp4_case("nvfp4_two_tiles", 144, 80, m=1, bias=False)
    yield nvfp4_case("nvfp4_pre_quant_scale", 16, 256, pqs=True,
                     mark={"format": "nvfp4", "full_precision_matrix_mult": True})
    yield mxfp8_case("mxfp8_small", 32, 256)
    yield mxfp8_case("mxfp8_aligned", 128, 128, m=1, as_u8=True)
    yield mxfp8_case("mxfp8_rowpad", 5, 256, m=1, bias=False)


# -- AWQ and plain ----------------------------------------------------------

def awq_case(name, dt, *, n=8, k=256, m=3, g=64):
    """kitchen has no AWQ quantizer, so this makes the codes itself (min/max per group)."""
    w = make_weight(name, n, k, torch.float32).view(n, k // g, g)
    lo, hi = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    s = ((hi - lo) / 15).clamp(min=1e-4).to(dt).float()
    z = (lo + 8 * s).to(dt).float()
    codes = ((w - z) / s + 8).round().clamp(0, 15).to(torch.int32).view(n, k)
    q = _pack_codes(codes, 4)
    scale = s.squeeze(-1).t().contiguous().to(dt)
    zeros = z.squeeze(-1).t().contiguous().to(dt)
    tag = {torch.bfloat16: "bf16", torch.float16: "f16"}[dt]

    def decode(t):
        p = TensorCoreAWQW4A16Layout.Params(scale=scale, orig_dtype=t, orig_shape=(n, k),
                                            zeros=zeros, group_size=g)
        return TensorCoreAWQW4A16Layout.dequantize(q, p).to(t)

    def exact():
        c = _unpack_codes(q, k, 4).double().view(n, k // g, g) - 8
        return (c * scale.double().t().unsqueeze(-1) + zeros.double().t().unsqueeze(-1)).view(n, k)

    def extra(x, b, t):
        if t != dt:
            return {}
        return {"y_gemv": k_awq.gemv_awq_w4a16(x, q, scale, zeros, None, g),
                "y_bias_gemv": k_awq.gemv_awq_w4a16(x, q, scale, zeros, b.to(t), g)}

    return Case(name, "awq_w4a16", {"": q, "_scale": scale, "_zeros": zeros},
                {"format": "awq_w4a16", "group_size": g}, decode,
                lambda x, b, t: torch_linear(x, decode(t), b), m=m, quant_group=g, decode64=exact,
                extra=extra, note=f"scales and zeros are {tag}",
                by="weight by make_goldens.py (kitchen has no AWQ quantizer); decode by "
                   "TensorCoreAWQW4A16Layout.dequantize with orig_dtype T, then cast to T; y is "
                   "torch's F.linear of decode.T and x.T; y_gemv (only for the scales' type) by "
                   "awq.gemv_awq_w4a16")


def plain_case(name, dt):
    w = make_weight(name, 6, 256, dt)
    return Case(name, "plain", {"": w}, None, lambda t: w.to(t),
                lambda x, b, t: torch_linear(x, w.to(t), b), decode64=w.double, bias_dtype=dt,
                by="torch only: cast and F.linear")


def other_cases():
    yield awq_case("awq_g64_bf16", torch.bfloat16)
    yield awq_case("awq_g64_f16", torch.float16, n=5, k=512, m=5)
    for t, dt in TYPES.items():
        yield plain_case("plain_" + t, dt)


def all_cases():
    for source in (int8_cases, w4a4_cases, w4a8_cases, fp8_cases, block_cases, other_cases):
        yield from source()


# ---------------------------------------------------------------------------
# Files with several layers

def multi(name, layers, plain, keys):
    """One checkpoint of several cases; expected tensors are named <layer>/<key>."""
    file, exp, meta = {}, {}, {}
    for layer, case in layers.items():
        file.update(case.checkpoint(layer))
        full = case.expected()
        for key in keys:
            if key in full:
                exp[f"{layer}/{key}"] = full[key]
        meta[layer] = {"format": case.fmt, "group": case.group, "quant_group": case.quant_group,
                       "act": case.act}
    file.update(plain)
    return file, exp, {"case": name, "layers": json.dumps(meta),
                       "made_by": f"{KITCHEN}, {TORCH}, eager backend on CPU; the functions are "
                                  "those of the single-layer cases of the same format"}


def pair_file():
    w = make_weight("pair.qkv", 3, 256, special=False)
    q4, s4 = ck.quantize_convrot_w4a4_weight(w, 256)
    w = make_weight("pair.fc1", 3, 256, special=False)
    q8, s8 = k_q.quantize_int8_convrot_weight(w, 256)
    assert q4.shape == (3, 128) and s4.shape == (3,) and q8.shape == (3, 256) and s8.shape == (3, 1)
    layers = {
        "blocks.0.attn.qkv_proj": w4a4_case("pair.qkv", q4, s4, 256, bias=False),
        "blocks.0.mlp.fc1": int8_case("pair.fc1", q8, s8, 256, bias=False),
    }
    keys = [f"{a}.{t}" for a in ("x", "y", "decode", "y_f32path", "y_act8") for t in TYPES]
    return multi("pair", layers, {}, keys)


def all_formats_file():
    def w(name, n=4, k=256):
        return make_weight("all." + name, n, k)

    layers = {}
    q, s = k_q.quantize_int8_rowwise(w("int8"))
    layers["blocks.0.attn.qkv_proj"] = int8_case("all.int8", q, s)
    q, s = k_q.quantize_int8_convrot_weight(w("int8rot"), 256)
    layers["blocks.1.attn.out_proj"] = int8_case("all.int8rot", q, s, 256)
    q, s = k_w4a4.quantize_convrot_w4a4_weight(w("w4a4"), 256)
    layers["blocks.2.mlp.fc1"] = w4a4_case("all.w4a4", q, s, 256)
    p = k_w4a8.quantize_w4a8_int8_weight(w("w4a8"), 16, 256)
    layers["blocks.3.mlp.fc2"] = w4a8_case("all.w4a8", p, 16, 256)
    p = k_w4a8.quantize_w4a8_int8_weight(w("w6a8"), 16, 256, bits=6)
    layers["blocks.4.mlp.fc1"] = w4a8_case("all.w6a8", p, 16, 256)
    layers["blocks.5.mlp.fc2"] = fp8_case("all.e4m3", torch.float8_e4m3fn, 0.0625, n=4)
    layers["blocks.6.attn.qkv_proj"] = fp8_case("all.e5m2", torch.float8_e5m2, None, n=4)
    layers["blocks.7.attn.out_proj"] = nvfp4_case("all.nvfp4", 16, 256)
    layers["blocks.8.mlp.fc1"] = mxfp8_case("all.mxfp8", 32, 256)
    layers["blocks.9.mlp.fc2"] = awq_case("all.awq", torch.bfloat16, n=4)
    g = rng("all.plain")
    plain = {
        "blocks.0.norm1.weight": torch.randn(256, generator=g).bfloat16(),
        "blocks.9.adaln_proj.linear.weight": torch.randn(12, 8, generator=g).half(),
        "final_layer.video_out.weight": torch.randn(5, 256, generator=g),
        "final_layer.video_out.bias": torch.randn(5, generator=g),
    }
    keys = ["x.f32", "decode.f32", "y.f32", "y_bias.f32", "y_f32path.f32", "y64"]
    return multi("all_formats", layers, plain, keys)


# ---------------------------------------------------------------------------
# Tables of the small number formats

def f32_bits(values):
    return torch.from_numpy(np.array(values, dtype=np.uint32).view(np.float32).copy())


def near(points):
    """Each point, its f32 neighbours, and the negatives."""
    out = []
    for p in points:
        p = np.float32(p)
        out += [p, np.nextafter(p, np.float32(np.inf)), np.nextafter(p, np.float32(-np.inf))]
    v = np.array(out, dtype=np.float32)
    return torch.from_numpy(np.concatenate([v, -v]))


def ties(values, limit):
    """The finite non-negative values of a format, the halfway points between them, beyond."""
    v = sorted({float(a) for a in values if np.isfinite(a) and a >= 0})
    mid = [(a + b) / 2 for a, b in zip(v, v[1:])]
    return near(v + mid + limit)


def codecs_file():
    out = {}
    byte = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    out["e4m3fn.decode"] = byte.view(torch.float8_e4m3fn).float()
    out["e5m2.decode"] = byte.view(torch.float8_e5m2).float()
    out["e8m0.decode_kitchen"] = k_fu.e8m0_to_f32(byte)
    out["e8m0.decode_ocp"] = byte.view(torch.float8_e8m0fnu).float()
    nib = torch.arange(16, dtype=torch.int16).to(torch.uint8)
    out["e2m1.decode"] = k_fu._floatx_unpacked_to_f32(nib, 2, 1)
    assert torch.equal(out["e2m1.decode"], k_q.E2M1_LUT.flatten())

    special = f32_bits([0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
                        0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff])
    random = torch.randn(64, generator=rng("codec")) * 3

    # e4m3fn / e5m2: torch's own cast does not saturate; kitchen clamps before it.
    for name, dt, top, beyond in (
            ("e4m3fn", torch.float8_e4m3fn, 448.0, [464.0, 480.0, 1e4, 1e30]),
            ("e5m2", torch.float8_e5m2, 57344.0, [61440.0, 65536.0, 1e30])):
        x = torch.cat([ties(out[f"{name}.decode"].tolist(), beyond), special, random])
        out[f"{name}.enc.x"] = x
        out[f"{name}.enc.torch"] = x.to(dt).view(torch.uint8)
        out[f"{name}.enc.clamped"] = x.clamp(-top, top).to(dt).view(torch.uint8)

    x = torch.cat([ties(out["e2m1.decode"].tolist(), [5.5, 6.5, 7.0, 8.0, 1e30]), special[:4],
                   random])
    out["e2m1.enc.x"] = x
    out["e2m1.enc.code"] = k_fu._f32_to_floatx_unpacked(x.clamp(-6, 6), 2, 1)

    # bf16: exact values, halves, the overflow border, subnormals.
    bits = []
    for hi in (0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x4049, 0x7f7e, 0x7f7f):
        for lo in (0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff):
            bits += [hi << 16 | lo, 0x80000000 | hi << 16 | lo]
    x = torch.cat([f32_bits(bits), special, random])
    out["bf16.enc.x"] = x
    out["bf16.enc.code"] = x.bfloat16().view(torch.uint16)

    u = 2.0 ** -24                              # the smallest f16 subnormal
    x = torch.cat([near([0.0, u / 2, u, 1.5 * u, 2 * u, 2.5 * u, 1022.5 * u, 1023 * u, 1023.5 * u,
                         1024 * u, 1.0, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 2049.0, 2051.0, 65504.0,
                         65519.0, 65520.0, 65536.0, 1e6]), special, random])
    out["f16.enc.x"] = x
    out["f16.enc.code"] = x.half().view(torch.uint16)

    # mxfp8: block maximum -> scale byte, by the real quantizer.
    a = torch.tensor([0.0, 448.0, 449.0, 447.0, 224.0, 225.0, 1.0, 0.875, 0.8750001, 1e-3, 1e-20,
                      1e-30, 3e38, 65504.0, 2.0 ** -100, 1.75 * 2.0 ** -100])
    blk = torch.zeros(a.numel(), 32)
    blk[:, 7] = a
    q, s = k_q.quantize_mxfp8(blk)
    out["mxfp8.amax"] = a
    out["mxfp8.scale"] = unswizzle(s.view(torch.uint8), a.numel(), 1).flatten()
    out["mxfp8.code"] = q[:, 7].contiguous().view(torch.uint8)

    # Hadamard, rotation
    for g in (4, 16, 64):
        out[f"hadamard.{g}"] = _build_hadamard(g, dtype=torch.float32)
    out["hadamard.256.row_bits"] = torch.from_numpy(np.packbits(
        (_build_hadamard(256, dtype=torch.float32) > 0).numpy(), axis=1, bitorder="little"))
    for g in (16, 64, 256):
        r = torch.randn(3, 512, generator=rng(f"rot{g}"))
        for t, dt in TYPES.items():
            x = r.to(dt)
            out[f"rot.{g}.x.{t}"] = x
            out[f"rot.{g}.y.{t}"] = _rotate_activation(x, _build_hadamard(g, dtype=dt), g)

    # Row quantizers (no rotation): codes and scales for each type.
    r = torch.randn(24, 128, generator=rng("rowq"))
    r[0] = 0.0
    r[1, 5] = -40.0
    r[2] *= 1e-4
    r[3] = torch.arange(128) / 64.0 - 1.0
    for t, dt in TYPES.items():
        x = r.to(dt)
        q, s = k_q.quantize_int8_rowwise(x)
        out[f"rowq8.x.{t}"], out[f"rowq8.q.{t}"], out[f"rowq8.s.{t}"] = x, q, s
        y = x[1:]                               # f16 divides an all-zero row by zero in int4
        q, s = k_w4a4._quantize_signed_int4_rowwise_unpacked(y)
        out[f"rowq4.x.{t}"], out[f"rowq4.q.{t}"], out[f"rowq4.s.{t}"] = y.clone(), q, s

    # Packing
    c = torch.randint(-8, 8, (2, 32), generator=rng("p4"), dtype=torch.int8)
    out["pack.int4.code"], out["pack.int4.byte"] = c, k_sv._pack_int4_row_major(c)
    for b in (4, 6):
        c = torch.randint(0, 1 << b, (2, 64), generator=rng(f"pu{b}"), dtype=torch.int32)
        out[f"pack.u{b}.code"] = c.to(torch.uint8)
        out[f"pack.u{b}.byte"] = _pack_codes(c, b)
    c = torch.randint(0, 16, (2, 32), generator=rng("pfp4"), dtype=torch.int32).to(torch.uint8)
    out["pack.fp4.code"], out["pack.fp4.byte"] = c, k_fu.pack_uint4(c)

    # Block-scale swizzle: 300 x 17, entries are 1 + index so that padding shows as 0.
    idx = torch.arange(300 * 17, dtype=torch.int32).view(300, 17) + 1
    out["swizzle.index.blocked"] = k_fu.to_blocked(idx, flatten=False)
    u8 = (idx % 251 + 1).to(torch.uint8)
    out["swizzle.u8.logical"] = u8
    out["swizzle.u8.blocked"] = k_fu.to_blocked(u8, flatten=False)

    meta = {"made_by": f"{KITCHEN}, {TORCH}: float_utils, eager.quantization, eager.convrot_w4a4, "
                       "eager.svdquant packing, tensor.w4a8_packed packing, tensor.int8_utils "
                       "Hadamard; torch casts for bf16, f16, e4m3fn, e5m2, e8m0 decode_ocp",
            "swizzle.index.blocked": "logical matrix [300,17] holds 1+row*17+column",
            "e8m0": "kitchen reads byte 0 as 0.0 and 255 as +Inf; OCP says 2^-127 and NaN"}
    return {k: v.contiguous() for k, v in out.items()}, meta


# ---------------------------------------------------------------------------
# --measure: eager results in T against the pure f32 pipeline

def rel(a, b):
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm()).item()


def measure():
    torch.set_num_threads(2)
    m, n = 64, 96
    print("relative L2 of y: kitchen eager in T against the f32 pipeline rounded once to T,")
    print(f"and of each against the unquantized float64 product; M={m} N={n}")
    for kind in ("int8_convrot", "w4a4 int4", "w4a4 int8"):
        for k in (512, 4096):
            for group in (16, 64, 256):
                for outlier in (False, True):
                    row = []
                    for t, dt in TYPES.items():
                        g = rng(f"measure{k}{group}")
                        w = torch.randn(n, k, generator=g) * 0.03
                        x = torch.randn(m, k, generator=g)
                        if outlier:
                            x[:, ::97] *= 20
                        w, x = w.bfloat16(), x.to(dt)
                        b = torch.randn(n, generator=g).to(dt)
                        if kind == "int8_convrot":
                            codes, s = k_q.quantize_int8_convrot_weight(w, group)
                            levels = 127
                        else:
                            q, s = k_w4a4.quantize_convrot_w4a4_weight(w, group)
                            codes = k_w4a4.prepare_int4_weight_for_int8_linear(q)
                            levels = 7 if kind.endswith("int4") else 127
                        if levels == 7:
                            y = k_w4a4.convrot_w4a4_linear(x, q, s, b, group)
                        else:
                            y = k_q.int8_linear(x, codes, s, b, dt, convrot=True,
                                                convrot_groupsize=group)
                        f = f32_linear(x, codes, s, b, dt, group, levels)
                        true = x.double() @ w.double().t() + b.double()
                        worst = ((y.double() - f.double()).abs().max() / f.double().std()).item()
                        row.append(f"{t}: {rel(y, f):.2e} (max {worst:.2e} sd; own errors "
                                   f"{rel(y, true):.2e} {rel(f, true):.2e})")
                    print(f"{kind:13s} K={k:5d} G={group:3d} outliers={int(outlier)}  "
                          + "  ".join(row))


# ---------------------------------------------------------------------------

def write(path, tensors, meta=None):
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata=meta)
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    # The writer puts __metadata__ in random order; sort it so that reruns give the same bytes.
    if meta:
        header["__metadata__"] = dict(sorted(meta.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw[8 + size:])
    os.chmod(path, 0o644)
    return os.path.getsize(path)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=os.path.join(here, "..", "tests", "golden"),
                    help="the golden folder (default: tests/golden)")
    ap.add_argument("--only", default="", help="write only cases whose name contains this")
    ap.add_argument("--measure", action="store_true", help="print rounding deviations and stop")
    args = ap.parse_args()

    torch.set_num_threads(1)                    # one thread: one summation order
    if args.measure:
        return measure()

    folder = os.path.join(args.out, "formats")
    os.makedirs(folder, exist_ok=True)
    total = 0

    def put(name, file, exp, meta):
        nonlocal total
        a = write(os.path.join(folder, name + ".safetensors"), file)
        b = write(os.path.join(folder, name + ".expected.safetensors"), exp, meta)
        total += a + b
        shapes = {k.rsplit(LAYER + ".", 1)[-1]: list(v.shape) for k, v in file.items()}
        print(f"{name:30s} {a + b:8d} bytes  {shapes if len(shapes) < 9 else len(shapes)}")

    for case in all_cases():
        if args.only in case.name:
            put(case.name, case.checkpoint(), case.expected(), case.metadata())
    for name, make in (("pair", pair_file), ("all_formats", all_formats_file)):
        if args.only in name:
            put(name, *make())
    if args.only in "codecs":
        tensors, meta = codecs_file()
        size = write(os.path.join(args.out, "codecs.safetensors"), tensors, meta)
        total += size
        print(f"codecs {size} bytes, {len(tensors)} tensors")
    print(f"total {total} bytes")


if __name__ == "__main__":
    main()
