#!/usr/bin/env python3
"""Makes tests/golden/gguf with ggml's own Python package.

blocks.safetensors: values, and what gguf's quantisers, which follow ggml's reference, make of them.
source.safetensors: a small checkpoint; q8_0.gguf, q4_0.gguf: what `parfait convert` is to make of
it, written by gguf's own writer.

    pip install gguf safetensors numpy
    python tools/make_gguf_goldens.py
"""

import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).parent.parent / "tests/golden/gguf"


def bf16_bits(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def blocks(rng):
    x = rng.standard_normal((24, 64)).astype(np.float32)
    x[0] = 0
    x[1, 5] = 1000  # one outlier
    x[2] = np.round(x[2] * 16) / 16  # ties of codes
    x[3] = 0.5
    x[4] = -np.abs(x[4])
    x[5] *= 1e-6  # scales that are subnormal in F16
    x[6] *= 1e4
    x[7:15] = rng.integers(-1000, 1000, (8, 64)) / 256
    x[15, ::2] = 0
    return x


def write_safetensors(path, tensors):
    """With BF16, which numpy has not; names in order."""
    names = {"F32": 4, "F16": 2, "BF16": 2}
    header, data = [], b""
    for name, dtype, array in tensors:
        raw = (bf16_bits(array) if dtype == "BF16" else array).tobytes()
        assert len(raw) == array.size * names[dtype]
        shape = ",".join(str(n) for n in array.shape)
        header.append(f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],'
                      f'"data_offsets":[{len(data)},{len(data) + len(raw)}]}}')
        data += raw
    text = "{" + ",".join(header) + "}"
    text += " " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


def source(rng):
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return [
        ("blocks.0.fc1.weight", "F32", normal(6, 64)),
        ("blocks.0.fc1.bias", "BF16", normal(6)),
        ("blocks.0.fc2.weight", "BF16", normal(3, 96)),
        ("blocks.0.narrow.weight", "F16", normal(3, 40).astype(np.float16)),
        ("conv.weight", "F16", normal(2, 3, 3, 3).astype(np.float16)),
        ("logit_scale", "F32", normal(1).reshape(())),
        ("norm.weight", "BF16", normal(64)),
        ("patch.weight", "F32", normal(2, 3, 1, 2, 2)),
    ]


def rounded(dtype, array):
    """The values as they are in the source."""
    if dtype != "BF16":
        return array.astype(np.float32)
    return (bf16_bits(array).astype(np.uint32) << 16).view(np.float32).reshape(array.shape)


def write_gguf(path, tensors, quantised, file_type):
    writer = gguf.GGUFWriter(path, "unknown")
    writer.add_quantization_version(2)
    writer.add_file_type(file_type)
    for name, dtype, array in tensors:
        values = rounded(dtype, array)
        if array.ndim <= 1:
            writer.add_tensor(name, values.reshape(-1))
        elif array.ndim == 2 and array.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, quantised), raw_dtype=quantised)
        elif array.ndim > 4:
            writer.add_array(f"comfy.gguf.orig_shape.{name}", [int(n) for n in array.shape])
            writer.add_tensor(name, values.reshape((-1,) + array.shape[2:]))
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20261203)
    x = blocks(rng)
    save_file({"x": x,
               "q8_0": gguf.quants.quantize(x, Type.Q8_0),
               "q4_0": gguf.quants.quantize(x, Type.Q4_0),
               "q8_0.decoded": gguf.quants.dequantize(gguf.quants.quantize(x, Type.Q8_0), Type.Q8_0),
               "q4_0.decoded": gguf.quants.dequantize(gguf.quants.quantize(x, Type.Q4_0), Type.Q4_0)},
              FOLDER / "blocks.safetensors")
    tensors = source(rng)
    write_safetensors(FOLDER / "source.safetensors", tensors)
    write_gguf(FOLDER / "q8_0.gguf", tensors, Type.Q8_0, 7)
    write_gguf(FOLDER / "q4_0.gguf", tensors, Type.Q4_0, 2)


if __name__ == "__main__":
    main()
