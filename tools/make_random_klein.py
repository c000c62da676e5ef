#!/usr/bin/env python3
"""Write a pipeline with random weights at FLUX.2 klein's real shapes, to time and measure it.

The transformer's linear layers are in one format, or in the usual mixture (attention projections
in int8_tensorwise, the rest in convrot_w4a4); embedders and modulations are bf16, as in published
files. The text encoder has Qwen3-4B's width and --encoder-layers of its layers, in int8; the
auto-encoder is a narrow one, and the tokenizer that of examples/digits.  Pictures are noise.

    python tools/make_random_klein.py DIR --format convrot_w4a4
    python tools/make_random_klein.py DIR --format mixed --double 2 --single 4
    parfait generate --model-dir DIR --prompt "a handwritten seven" --width 512 --height 512 --profile

Everything is written in pieces: a 7.8 GB file needs some megabytes of memory.  Needs numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct

import numpy

WIDTH, MLP, HEADS, TEXT, LATENT = 3072, 9216, 24, 7680, 32
ENCODER = {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
FORMATS = ("bf16", "int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8", "w6a8_int8", "mixed")
PIECE = 1 << 22
SIZE = {"F32": 4, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}
GROUP = 16  # columns that share a relative scale


class File:
    """Tensors with the way in which each is filled, written in one pass."""

    def __init__(self):
        self.tensors = []

    def add(self, name, dtype, shape, fill):
        self.tensors.append((name, dtype, list(shape), fill))

    def linear(self, name, rows, columns, form):
        # Weights of a deviation of about 1 / sqrt(columns): what goes through stays of one size.
        spread = columns**-0.5
        marker = {"format": form, "convrot": True, "convrot_groupsize": 256}
        if form == "bf16":
            self.add(name + ".weight", "BF16", (rows, columns), ("normal", spread))
            return
        if form == "int8_tensorwise":
            self.add(name + ".weight", "I8", (rows, columns), ("bytes",))
            self.add(name + ".weight_scale", "F32", (rows, 1), ("constant", spread / 74))
        elif form == "convrot_w4a4":
            self.add(name + ".weight", "I8", (rows, columns // 2), ("nibbles",))
            self.add(name + ".weight_scale", "F32", (rows,), ("constant", spread / 4.3))
            marker = {"format": form, "convrot_groupsize": 256}
        else:
            bits, levels = (4, 8) if form == "asym_w4a8_int8" else (6, 32)
            self.add(name + ".weight", "I8", (rows, columns * bits // 8), ("bytes",))
            self.add(name + ".weight_s_rel", "F8_E4M3", (rows, columns // GROUP), ("scales", 120 / levels))
            self.add(name + ".weight_s_channel", "F32", (rows,), ("constant", spread / 60))
            marker = {"format": form, "group_size": GROUP, "convrot": True, "convrot_groupsize": 256}
        text = json.dumps(marker).encode()
        self.add(name + ".comfy_quant", "U8", (len(text),), ("text", text))

    def write(self, path):
        header, offset = {}, 0
        for name, dtype, shape, _ in self.tensors:
            size = int(numpy.prod(shape, dtype=numpy.int64)) * SIZE[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-(len(text) + 8) % 64)
        path.parent.mkdir(parents=True, exist_ok=True)
        random = numpy.random.default_rng(1)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, dtype, _, fill in self.tensors:
                begin, end = header[name]["data_offsets"]
                for at in range(begin, end, PIECE):
                    out.write(bytes_of(random, dtype, min(PIECE, end - at), fill))
        print(f"{path}: {offset / 1e9:.2f} GB")


def bf16(values):
    return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()


def bytes_of(random, dtype, size, fill):
    kind = fill[0]
    if kind == "text":
        return fill[1]
    if kind == "bytes":
        return random.bytes(size)
    if kind == "nibbles":  # -7 .. 7 in both halves
        low, high = random.integers(-7, 8, (2, size), numpy.int8)
        return ((low & 15) | (high << 4)).astype(numpy.int8).tobytes()
    if kind == "scales":  # e4m3 codes of values from half of fill[1] to it
        top = int(numpy.floor(numpy.log2(fill[1]))) + 7
        return random.integers((top - 1) * 8, top * 8, size, numpy.uint8).tobytes()
    count = size // SIZE[dtype]
    if kind == "constant":
        values = numpy.full(count, fill[1], numpy.float32)
    else:
        values = random.standard_normal(count, numpy.float32) * numpy.float32(fill[1])
    return values.tobytes() if dtype == "F32" else bf16(values)


def transformer(arguments):
    file = File()
    projection = "int8_tensorwise" if arguments.format == "mixed" else arguments.format
    rest = "convrot_w4a4" if arguments.format == "mixed" else arguments.format
    norm = lambda name: file.add(name, "BF16", (WIDTH // HEADS,), ("constant", 1.0))  # noqa: E731
    file.linear("img_in", WIDTH, 4 * LATENT, "bf16")
    file.linear("txt_in", WIDTH, TEXT, "bf16")
    file.linear("time_in.in_layer", WIDTH, 256, "bf16")
    file.linear("time_in.out_layer", WIDTH, WIDTH, "bf16")
    for stream in ("img", "txt"):
        file.linear(f"double_stream_modulation_{stream}.lin", 6 * WIDTH, WIDTH, "bf16")
    file.linear("single_stream_modulation.lin", 3 * WIDTH, WIDTH, "bf16")
    for i in range(arguments.double):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}_"
            file.linear(block + "attn.qkv", 3 * WIDTH, WIDTH, rest)
            file.linear(block + "attn.proj", WIDTH, WIDTH, projection)
            norm(block + "attn.norm.query_norm.scale")
            norm(block + "attn.norm.key_norm.scale")
            file.linear(block + "mlp.0", 2 * MLP, WIDTH, rest)
            file.linear(block + "mlp.2", WIDTH, MLP, rest)
    for i in range(arguments.single):
        block = f"single_blocks.{i}."
        file.linear(block + "linear1", 3 * WIDTH + 2 * MLP, WIDTH, rest)
        file.linear(block + "linear2", WIDTH, WIDTH + MLP, rest)
        norm(block + "norm.query_norm.scale")
        norm(block + "norm.key_norm.scale")
    file.linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH, "bf16")
    file.linear("final_layer.linear", 4 * LATENT, WIDTH, "bf16")
    return file


def text_encoder(layers, vocabulary):
    file = File()
    width, mlp, head = ENCODER["hidden_size"], ENCODER["intermediate_size"], ENCODER["head_dim"]
    queries, keys = ENCODER["num_attention_heads"] * head, ENCODER["num_key_value_heads"] * head
    file.linear("model.embed_tokens", vocabulary, width, "bf16")
    for i in range(layers * 3 // 4):
        block = f"model.layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", queries, width), ("self_attn.k_proj", keys, width),
            ("self_attn.v_proj", keys, width), ("self_attn.o_proj", width, queries),
            ("mlp.gate_proj", mlp, width), ("mlp.up_proj", mlp, width), ("mlp.down_proj", width, mlp),
        ):  # fmt: skip
            file.linear(block + name, rows, columns, "int8_tensorwise")
        for name, size in (("input_layernorm", width), ("post_attention_layernorm", width),
                           ("self_attn.q_norm", head), ("self_attn.k_norm", head)):  # fmt: skip
            file.add(f"{block}{name}.weight", "BF16", (size,), ("constant", 1.0))
    config = ENCODER | {"model_type": "qwen3", "num_hidden_layers": layers, "rope_theta": 1e6,
                        "rms_norm_eps": 1e-6, "vocab_size": vocabulary}  # fmt: skip
    return file, config


def auto_encoder():
    file, c = File(), 32

    def conv(name, to, of, size=3):
        file.add(f"decoder.{name}.weight", "BF16", (to, of, size, size), ("normal", (of * size**2) ** -0.5))
        file.add(f"decoder.{name}.bias", "BF16", (to,), ("constant", 0.0))

    def norm(name):
        file.add(f"decoder.{name}.weight", "BF16", (c,), ("constant", 1.0))
        file.add(f"decoder.{name}.bias", "BF16", (c,), ("constant", 0.0))

    def resnet(name):
        for i in (1, 2):
            conv(f"{name}.conv{i}", c, c)
            norm(f"{name}.norm{i}")

    file.add("bn.running_mean", "F32", (4 * LATENT,), ("constant", 0.0))
    file.add("bn.running_var", "F32", (4 * LATENT,), ("constant", 1.0))
    conv("conv_in", c, LATENT)
    conv("conv_out", 3, c)
    conv("post_quant_conv", LATENT, LATENT, 1)
    norm("norm_out")
    norm("mid.attn_1.norm")
    for name in ("q", "k", "v", "proj_out"):
        conv(f"mid.attn_1.{name}", c, c, 1)
    resnet("mid.block_1")
    resnet("mid.block_2")
    for up in range(4):
        for block in range(3):
            resnet(f"up.{up}.block.{block}")
        if up:
            conv(f"up.{up}.upsample.conv", c, c)
    return file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--format", choices=FORMATS, default="mixed")
    parser.add_argument("--double", type=int, default=5, help="double blocks (klein 4B has 5)")
    parser.add_argument("--single", type=int, default=20, help="single blocks (klein 4B has 20)")
    parser.add_argument("--encoder-layers", type=int, default=4, help="a multiple of 4 (Qwen3-4B has 36)")
    arguments = parser.parse_args()
    if arguments.encoder_layers % 4 or arguments.encoder_layers < 4:
        parser.error("--encoder-layers takes a multiple of 4")
    folder = arguments.folder
    digits = pathlib.Path(__file__).resolve().parent.parent / "examples/digits"
    vocabulary = json.loads((digits / "text_encoders/config.json").read_text())["vocab_size"]
    transformer(arguments).write(folder / "diffusion_models/klein.safetensors")
    encoder, config = text_encoder(arguments.encoder_layers, vocabulary)
    encoder.write(folder / "text_encoders/qwen3.safetensors")
    (folder / "text_encoders/config.json").write_text(json.dumps(config, indent=2) + "\n")
    auto_encoder().write(folder / "vae/vae.safetensors")
    (folder / "tokenizer").mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(digits / "tokenizer" / name, folder / "tokenizer" / name)


if __name__ == "__main__":
    main()
