#!/usr/bin/env python3
"""Write tests/golden/pipelines and tests/golden/random with diffusers as the reference.

    klein/     a tiny FLUX.2 klein pipeline with random weights: Flux2KleinPipeline
    z_image/   the same for Z-Image: ZImagePipeline
    random/    what torch.randn gives on a CPU

Each pipeline folder is a Hugging Face repository (model_index.json, transformer/,
text_encoder/, vae/, tokenizer/, scheduler/), comfy/ with the same weights under the names of
BFL and ComfyUI, and golden.safetensors with the stages of a run of the pipeline classes
themselves. tests/golden/pipelines/README.md explains every tensor name.

    pip install -r tools/requirements_pipelines.txt
    python tools/make_pipeline_goldens.py                  # write everything
    python tools/make_pipeline_goldens.py --only klein     # klein, z_image, random or sigmas

Everything is seeded by names, so a rerun with the same package versions on the same kind of
CPU gives the same bytes.
"""

import argparse
import json
import math
import os
import re
import struct
import subprocess
import sys
import unicodedata
import zlib

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "tests", "golden")
SEED = 20261203
HEIGHT, WIDTH = 64, 96
PROMPT = ("Three cafe\u0301 parfaits, layered: 1 mango, 23 na\u00efve \u03a3-shaped spoons; "
          "it's 7\u00b0C\n\nnow \u2014 \u96ea\u3068\U0001f353!  DON'T stir")


# ---------------------------------------------------------------------------
# Files

def write(path, tensors, meta=None):
    """A safetensors file whose bytes depend on the tensors and the metadata only."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
    save_file(tensors, path, metadata=meta)
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    if meta:
        header["__metadata__"] = dict(sorted(meta.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw[8 + size:])
    os.chmod(path, 0o644)


def write_json(path, value, **options):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        json.dump(value, f, ensure_ascii=False, **({"indent": 2} | options))
        f.write("\n")


def made_by():
    import diffusers
    import transformers
    return (f"diffusers {diffusers.__version__}, transformers {transformers.__version__}, "
            f"torch {torch.__version__}, CPU capability {torch.backends.cpu.get_cpu_capability()}")


# ---------------------------------------------------------------------------
# Weights

def rng(name):
    """A generator that depends only on the name."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


# Standard deviation times sqrt(fan in), by name; the first that matches.
GAINS = [
    (r"double_stream_modulation|single_stream_modulation|adaLN_modulation|norm_out\.linear", 2.0),
    (r"timestep_embedder|t_embedder", 1.6),
    (r"\bto_q|\bto_k|add_q_proj|add_k_proj|q_proj|k_proj", 1.4),
    (r"decoder\.conv_out", 0.5),
    (r"decoder|post_quant_conv", 1.2),
    (r"", 1.0),
]


def random_weight(scope, name, shape):
    """Gaussian, the values exact in bfloat16, so that one set of weights is in both folders."""
    r = torch.randn(shape, generator=rng(f"{scope}:{name}")) if shape else torch.zeros(())
    if name.endswith("num_batches_tracked"):
        return torch.tensor(1000, dtype=torch.int64)
    if name.endswith("running_var"):
        r = torch.exp(0.5 * r)
    elif name.endswith("running_mean"):
        r = 0.4 * r
    elif name.endswith("bias"):
        r = 0.1 * r
    elif name.endswith("_pad_token"):
        r = 0.7 * r
    elif "embed_tokens" in name:
        r = 0.8 * r
    elif len(shape) == 1:
        r = 1 + 0.2 * r                         # the weight of a norm
    else:
        gain = next(g for pattern, g in GAINS if re.search(pattern, name))
        r = r * (gain / math.sqrt(math.prod(shape[1:])))
    return r.bfloat16().float()


def random_state(scope, model, drop=r"$^"):
    return {k: random_weight(scope, k, list(v.shape)) for k, v in model.state_dict().items()
            if not re.match(drop, k)}


def bf16(tensors):
    out = {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors.items()}
    assert all(torch.equal(out[k].to(v.dtype), v) for k, v in tensors.items())
    return out


# ---------------------------------------------------------------------------
# Tokenizer: Qwen's, with a vocabulary trained on these lines

CORPUS = """
A parfait is a dessert of unlike layers: cream, fruit, ice and a long spoon in a tall glass.
The quick brown fox jumps over the lazy dog; it's a dog's life, isn't it? They're here, we've won.
a photograph of a cat with a red hat, standing in the snow, soft light, 35mm, high detail
I'm sure you'll see that she'd said the same thing there and then, in the layers of the glass.
an oil painting of the old harbour at dawn, with the boats and the birds and the light on the water
Deux cafés s'il vous plaît; une crème brûlée, naïve et légère. Où est la glace à la framboise ?
Die Straße ist schön. Größe und Wärme, das Wasser und der Schnee, ein Löffel für die Schichten.
Σ is the sum of the layers; π is 3.14159, and e is 2.71828. 10 20 30 100 1000 2026
雪と雨と風。 雪の山。 甘いパフェを食べる。 玻璃杯里的雪糕。 一二三四五
for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // the sum of the layers
def layer(x, y):\n    return x + y\n\n\nprint(layer(1, 2))
"""

# Qwen3's added tokens, in its order (151643 and on); the second list is not "special".
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>",
           "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
           "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
           "<|video_pad|>"]
ADDED = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
         "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
         "<think>", "</think>"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# What Qwen3's template makes of plain messages; it has tools and reasoning besides.
TEMPLATE = ("{%- for message in messages %}"
            "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
            "{%- if enable_thinking is defined and enable_thinking is false %}"
            "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}")
VOCAB = 352                                     # 256 bytes and 96 merges
EMBEDDINGS = 384                                # rows of the embedding, more than there are tokens


def make_tokenizer(folder):
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                            pre_tokenizers, processors, trainers)
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                              use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([CORPUS], trainer)
    assert tok.get_vocab_size() == VOCAB
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    assert tok.get_vocab_size() <= EMBEDDINGS
    write_json(os.path.join(folder, "tokenizer.json"), json.loads(tok.to_str()), indent=None,
               separators=(",", ":"))
    write_json(os.path.join(folder, "tokenizer_config.json"), {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tok.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False,
                                      "rstrip": False, "single_word": False, "special": s}
            for group, s in ((SPECIAL, True), (ADDED, False)) for t in group},
        "additional_special_tokens": SPECIAL[1:], "bos_token": None, "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
    return tok


def load_tokenizer(folder):
    """The class diffusers loads, checked against tokenizer.json by itself."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer
    hf = AutoTokenizer.from_pretrained(folder)
    raw = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    for case in tokenizer_texts():
        assert hf(case, add_special_tokens=False)["input_ids"] == \
            raw.encode(case, add_special_tokens=False).ids, case
    assert hf.padding_side == "right" and hf.pad_token == "<|endoftext|>"
    return hf


def tokenizer_texts():
    return [
        "", " ", "  ", "a", " a", "  a", "a  b", "the layers", "The Layers", "THE LAYERS",
        "it's IT'S It'S they'Re we'VE 'd''ll x'T", "I'mpossible 'sand 's 'S\u017f '\u017f",
        "123 4567 3.14 \u0661\u0662 \u2167 \u00bd x\u00b2", "tabs\tand\t\tspaces \t mix",
        "line\nline\n\nline\r\nline \n  \n x", "trailing  ", "\n", " \n", "\r\n\r\n",
        "cafe\u0301 caf\u00e9 A\u030a \u212b \u1100\u1161\u11a8 \uac01 \ufb01 \u0344",
        "q\u0307\u0323 q\u0323\u0307", "\u96ea\u3068\u96e8\u3002\u7532\u4e59",
        "\U0001f353\U0001f468\u200d\U0001f373!",
        "\u00a0nbsp\u00a0\u00a0x\u3000y\u2003z\u0085w\u2028v\u200bu", "_under_score __init__ a_b",
        "!!! ?\n?! (x) [y] {z}; -> :: //\n\n", "for (int i = 0; i < n; ++i) { sum += a[i]; }",
        "\u03a3\u03c0\u0438\u0421\u043d\u0435\u0433 \u05e9\u05dc\u05d2 \u062b\u0644\u062c "
        "\u0939\u093f\u092e \u0e2b\u0e34\u0e21\u0e30",
        "<|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>\n\n", "a<|im_end|>b <|im_end|> c",
        "<|im_start|", "<think >", "<|endoftext|><|endoftext|>", "\x00\x01\x7f\u0080\ufffd",
        unicodedata.normalize("NFD", "\u00c5ngstr\u00f6m \u1ec7 \uac01"), PROMPT]


# ---------------------------------------------------------------------------
# Text encoder: Qwen3

def qwen3_config(layers, hidden, heads, kv_heads, head_dim, ffn, tok):
    return {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": tok.token_to_id("<|endoftext|>"),
        "eos_token_id": tok.token_to_id("<|im_end|>"), "head_dim": head_dim, "hidden_act": "silu",
        "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": ffn,
        "max_position_embeddings": 40960, "max_window_layers": layers, "model_type": "qwen3",
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "torch_dtype": "float32", "use_cache": True,
        "use_sliding_window": False, "vocab_size": EMBEDDINGS}


def make_text_encoder(folder, scope, config, shards):
    from transformers import Qwen3Config, Qwen3ForCausalLM
    write_json(os.path.join(folder, "config.json"), config)
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder))
    state = random_state(scope, model, drop=r"lm_head")
    assert all(k.startswith("model.") for k in state)
    if shards == 1:
        write(os.path.join(folder, "model.safetensors"), state, {"format": "pt"})
        return state
    names, where, size = list(state), {}, 0
    total = sum(v.numel() * 4 for v in state.values())
    for k in names:
        where[k] = f"model-{1 + size * shards // total:05d}-of-{shards:05d}.safetensors"
        size += state[k].numel() * 4
    for file in sorted(set(where.values())):
        write(os.path.join(folder, file), {k: state[k] for k in names if where[k] == file},
              {"format": "pt"})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})
    return state


# ---------------------------------------------------------------------------
# Transformers and VAEs

# The class fixes the inner width of Z-Image's timestep MLP at 1024, 1.3 MB in float32. Here it
# is as narrow as the tensors say; nothing else of the class changes.
TIME_WIDTH = 64


class narrow_timestep_embedder:
    def __enter__(self):
        from diffusers.models.transformers import transformer_z_image as z
        self.z, self.full = z, z.TimestepEmbedder
        z.TimestepEmbedder = lambda out_size, mid_size=None: self.full(out_size, TIME_WIDTH)

    def __exit__(self, *_):
        self.z.TimestepEmbedder = self.full


def make_part(folder, scope, cls, config, drop=r"$^", dtype=torch.float32):
    model = cls(**config)
    model.save_config(folder)
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        written = json.load(f)
    write_json(path, written)
    state = random_state(scope, model, drop)
    stored = state if dtype == torch.float32 else bf16(state)
    write(os.path.join(folder, "diffusion_pytorch_model.safetensors"), stored, {"format": "pt"})
    return state


def load_part(folder, cls):
    """The stored file in the class. What the file leaves out is the encoder of the VAE."""
    model = cls.from_config(cls.load_config(folder))
    state = load_file(os.path.join(folder, "diffusion_pytorch_model.safetensors"))
    result = model.load_state_dict({k: v.float() if v.is_floating_point() else v
                                    for k, v in state.items()}, strict=False)
    assert not result.unexpected_keys
    assert all(re.match(r"encoder\.|quant_conv\.", k) for k in result.missing_keys)
    return model.eval()


# ---------------------------------------------------------------------------
# Names of BFL and ComfyUI

def comfy_klein(state):
    simple = {"x_embedder": "img_in", "context_embedder": "txt_in",
              "proj_out": "final_layer.linear",
              "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
              "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
              "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
              "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
              "single_stream_modulation.linear": "single_stream_modulation.lin"}
    double = {"attn.to_out.0.weight": "img_attn.proj.weight",
              "attn.to_add_out.weight": "txt_attn.proj.weight",
              "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
              "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
              "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
              "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
              "ff.linear_in.weight": "img_mlp.0.weight",
              "ff.linear_out.weight": "img_mlp.2.weight",
              "ff_context.linear_in.weight": "txt_mlp.0.weight",
              "ff_context.linear_out.weight": "txt_mlp.2.weight"}
    single = {"attn.to_qkv_mlp_proj.weight": "linear1.weight",
              "attn.to_out.weight": "linear2.weight",
              "attn.norm_q.weight": "norm.query_norm.scale",
              "attn.norm_k.weight": "norm.key_norm.scale"}
    rest, out = dict(state), {}
    for old, new in simple.items():
        out[new + ".weight"] = rest.pop(old + ".weight")
    scale, shift = rest.pop("norm_out.linear.weight").chunk(2, dim=0)
    out["final_layer.adaLN_modulation.1.weight"] = torch.cat([shift, scale])
    for n in range(len({k.split(".")[1] for k in rest if k.startswith("transformer_blocks.")})):
        old, new = f"transformer_blocks.{n}.", f"double_blocks.{n}."
        for stream, names in (("img_attn", ("to_q", "to_k", "to_v")),
                              ("txt_attn", ("add_q_proj", "add_k_proj", "add_v_proj"))):
            out[f"{new}{stream}.qkv.weight"] = torch.cat(
                [rest.pop(f"{old}attn.{name}.weight") for name in names])
        for a, b in double.items():
            out[new + b] = rest.pop(old + a)
    for n in range(len({k.split(".")[1] for k in rest if k.startswith("single_transformer_")})):
        for a, b in single.items():
            out[f"single_blocks.{n}.{b}"] = rest.pop(f"single_transformer_blocks.{n}.{a}")
    assert not rest, rest.keys()
    return out


def comfy_z_image(state, prefix):
    rest, out = dict(state), {}
    for k in list(state):
        if k not in rest:
            continue
        new = k.replace("all_x_embedder.2-1.", "x_embedder.") \
               .replace("all_final_layer.2-1.", "final_layer.") \
               .replace("attention.to_out.0.", "attention.out.") \
               .replace("attention.norm_q.", "attention.q_norm.") \
               .replace("attention.norm_k.", "attention.k_norm.")
        if k.endswith("attention.to_q.weight"):
            base = k[:-len("to_q.weight")]
            out[prefix + base + "qkv.weight"] = torch.cat(
                [rest.pop(f"{base}to_{x}.weight") for x in "qkv"])
        else:
            out[prefix + new] = rest.pop(k)
    assert not rest
    return out


def comfy_vae(state, bfl):
    """LDM names; with `bfl` the quant convolutions sit in the encoder and the decoder."""
    out = {}
    for k, v in state.items():
        k = re.sub(r"^(post_quant_conv)", r"decoder.\1", k) if bfl else k
        k = re.sub(r"^(quant_conv)", r"encoder.\1", k) if bfl else k
        k = re.sub(r"up_blocks\.(\d)", lambda m: f"up.{3 - int(m[1])}", k)
        k = re.sub(r"(up\.\d)\.resnets\.", r"\1.block.", k).replace("upsamplers.0", "upsample")
        k = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", k)
        k = k.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        if "mid_block.attentions.0" in k:
            k = k.replace("mid_block.attentions.0", "mid.attn_1").replace("group_norm", "norm")
            k = k.replace("to_out.0", "proj_out").replace("to_q", "q").replace("to_k", "k")
            k = k.replace("to_v", "v")
            if v.dim() == 2:
                v = v[:, :, None, None]
        out[k] = v
    return out


def check_comfy(name, transformer, comfy, vae, comfy_v, levels):
    """Back by diffusers' own single-file functions: the same tensors, bit for bit."""
    from diffusers.loaders import single_file_utils as s
    back = {"klein": s.convert_flux2_transformer_checkpoint_to_diffusers,
            "z_image": s.convert_z_image_transformer_checkpoint_to_diffusers}[name](dict(comfy))
    assert back.keys() == transformer.keys()
    assert all(torch.equal(back[k], v) for k, v in transformer.items())
    ldm = {k.replace("decoder.post_quant_conv", "post_quant_conv"): v for k, v in comfy_v.items()}
    back = s.convert_ldm_vae_checkpoint(ldm, {"down_block_types": [0] * levels,
                                              "up_block_types": [0] * levels})
    back.update({k: v for k, v in ldm.items() if k.startswith("bn.")})
    assert back.keys() == vae.keys(), back.keys() ^ vae.keys()
    assert all(torch.equal(back[k].reshape(v.shape), v) for k, v in vae.items())
    print(f"{name}: comfy/ converted back by diffusers: {len(transformer)} + {len(vae)} tensors "
          "equal")


# ---------------------------------------------------------------------------
# Runs: everything is taken from the pipeline while it runs

class Capture:
    """Hooks on one run of a pipeline. The calls of a step are kept in order."""

    def __init__(self, pipe):
        self.text, self.calls, self.steps, self.vae_in, self.vae_out = [], [], [], None, None
        self.blocks, self.handles, self.pipe = {}, [], pipe
        self.hook(pipe.text_encoder, lambda m, a, kw, out: self.text.append(
            (kw["input_ids"].clone(), kw["attention_mask"].clone(), out.hidden_states)))
        self.hook(pipe.transformer, lambda m, a, kw, out: self.calls.append((a, kw, out[0])))
        self.step, pipe.scheduler.step = pipe.scheduler.step, self.on_step
        self.decode, pipe.vae.decode = pipe.vae.decode, self.on_decode

    def hook(self, module, f):
        self.handles.append(module.register_forward_hook(f, with_kwargs=True))

    def keep_blocks(self, names, pick=lambda name, out: out):
        """The outputs of these submodules the first time that they run."""
        modules = {k: m for k, m in self.pipe.transformer.named_modules() if k in names}
        modules["vae.mid_block"] = self.pipe.vae.decoder.mid_block
        for name, module in modules.items():
            def f(m, a, kw, out, name=name):    # returns nothing: the output stays
                self.blocks.setdefault(name, pick(name, out).clone())
            self.hook(module, f)

    def on_step(self, output, t, sample, **kw):
        out = self.step(output, t, sample, **kw)
        self.steps.append((sample.clone(), output.clone(), out[0].clone()))
        return out

    def on_decode(self, z, **kw):
        self.vae_in = z.clone()
        out = self.decode(z, **kw)
        self.vae_out = out[0].clone()
        return out

    def close(self):
        for h in self.handles:
            h.remove()
        del self.pipe.scheduler.step, self.pipe.vae.decode


class double_precision:
    """The transformer in float64: the casts to float32 inside diffusers keep float64, and so
    does its RMS norm. Tables made in float32 (timestep sinusoid, RoPE) stay as they are."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        from diffusers.models import normalization
        self.norm, self.float = normalization.RMSNorm, torch.Tensor.float
        self.forward = self.norm.forward
        keep = self.float
        torch.Tensor.float = lambda x: x if x.dtype == torch.float64 else keep(x)
        self.norm.forward = lambda m, x: x * torch.rsqrt(
            x.pow(2).mean(-1, keepdim=True) + m.eps) * m.weight
        self.model.double()
        return self.model

    def __exit__(self, *_):
        torch.Tensor.float, self.norm.forward = self.float, self.forward
        self.model.float()


def doubled(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if isinstance(value, (list, tuple)):
        return type(value)(doubled(v) for v in value)
    return {k: doubled(v) for k, v in value.items()} if isinstance(value, dict) else value


def velocity64(model, call, sinusoid_owner, sinusoid_name):
    """The call again in float64, with the float32 timestep sinusoid of the real run."""
    args, kwargs, _ = call
    saved = []
    plain = getattr(sinusoid_owner, sinusoid_name)
    bound = plain.forward if isinstance(plain, torch.nn.Module) else plain

    def replace(f):
        if isinstance(plain, torch.nn.Module):
            plain.forward = f
        else:
            setattr(sinusoid_owner, sinusoid_name, f)

    replace(lambda *a: saved.append(bound(*a)) or saved[-1])
    model(*args, **kwargs)
    with double_precision(model):
        replace(lambda *a: saved[0].double())
        out = model(*doubled(args), **doubled(kwargs))[0]
    replace(bound)
    return out


def rel(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def describe(name, tensors):
    for k, v in tensors.items():
        if v.is_floating_point():
            assert torch.isfinite(v).all(), (name, k)
            print(f"  {name} {k:34s} {str(list(v.shape)):16s} mean {v.double().mean():+.3f} "
                  f"sd {v.double().std():.3f} max {v.abs().max():.3f}")


def to_u8(pixels):
    return torch.from_numpy((pixels.permute(1, 2, 0).numpy() * 255).round().astype("uint8"))


def generator():
    return torch.Generator("cpu").manual_seed(SEED)


def common_meta(name, pipe, seed_shape, **more):
    return {"case": name, "prompt": PROMPT, "seed": str(SEED), "height": str(HEIGHT),
            "width": str(WIDTH), "noise_shape": json.dumps(seed_shape), "made_by": made_by(),
            "pipeline": type(pipe).__name__ + ", everything in float32", **more}


# ---------------------------------------------------------------------------
# FLUX.2 klein

KLEIN_LAYERS = 8                                # taps 2, 4, 6 of 8, as 9, 18, 27 of 36
KLEIN_SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256,
                   "base_shift": 0.5, "invert_sigmas": False, "max_image_seq_len": 4096,
                   "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 3.0,
                   "shift_terminal": None, "stochastic_sampling": False,
                   "time_shift_type": "exponential", "use_beta_sigmas": False,
                   "use_dynamic_shifting": True, "use_exponential_sigmas": False,
                   "use_karras_sigmas": False}
KLEIN_TRANSFORMER = {"patch_size": 1, "in_channels": 32, "out_channels": None, "num_layers": 2,
                     "num_single_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
                     "joint_attention_dim": 96, "timestep_guidance_channels": 256,
                     "mlp_ratio": 3.0, "axes_dims_rope": [4, 4, 4, 4], "rope_theta": 2000,
                     "eps": 1e-6, "guidance_embeds": False}
KLEIN_VAE = {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 2, "latent_channels": 8,
             "norm_num_groups": 32, "sample_size": 1024}


def make_klein(folder):
    from diffusers import (AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel,
                           FlowMatchEulerDiscreteScheduler)
    from transformers import Qwen3ForCausalLM

    def at(*p):
        return os.path.join(folder, *p)

    tok = make_tokenizer(at("tokenizer"))
    text = make_text_encoder(at("text_encoder"), "klein.text",
                             qwen3_config(KLEIN_LAYERS, 32, 6, 2, 8, 40, tok), shards=1)
    trans = make_part(at("transformer"), "klein.transformer", Flux2Transformer2DModel,
                      KLEIN_TRANSFORMER)
    vae = make_part(at("vae"), "klein.vae", AutoencoderKLFlux2, KLEIN_VAE,
                    drop=r"encoder\.|quant_conv\.", dtype=torch.bfloat16)
    write_json(at("scheduler", "scheduler_config.json"), KLEIN_SCHEDULER)
    write_json(at("model_index.json"), {
        "_class_name": "Flux2KleinPipeline", "is_distilled": True,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3ForCausalLM"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "transformer": ["diffusers", "Flux2Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"]})

    ct, cv = comfy_klein(trans), comfy_vae(vae, bfl=True)
    check_comfy("klein", trans, ct, vae, cv, 4)
    write(at("comfy", "diffusion_model.safetensors"), bf16(ct))
    write(at("comfy", "text_encoder.safetensors"), bf16(text))
    write(at("comfy", "vae.safetensors"), bf16(cv))

    def pipeline(distilled):
        return Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(at("scheduler")),
            vae=load_part(at("vae"), AutoencoderKLFlux2),
            text_encoder=Qwen3ForCausalLM.from_pretrained(at("text_encoder"),
                                                          dtype=torch.float32).eval(),
            tokenizer=load_tokenizer(at("tokenizer")),
            transformer=load_part(at("transformer"), Flux2Transformer2DModel),
            is_distilled=distilled)

    taps = tuple(KLEIN_LAYERS * i // 4 for i in (1, 2, 3))
    blocks = ["time_guidance_embed", "transformer_blocks.0", "transformer_blocks.1",
              "single_transformer_blocks.0", "single_transformer_blocks.1"]

    def pick(name, out):                        # of the blocks the image rows
        if name.startswith("transformer_blocks"):
            return out[1][0]
        return out[0][512:] if name.startswith("single") else out[0]

    def run(steps, guidance, distilled):
        pipe = pipeline(distilled)
        pipe.set_progress_bar_config(disable=True)
        cap = Capture(pipe)
        cap.keep_blocks(blocks, pick)
        result = pipe(prompt=PROMPT, height=HEIGHT, width=WIDTH, num_inference_steps=steps,
                      guidance_scale=guidance, generator=generator(), output_type="pt",
                      text_encoder_out_layers=taps)
        cap.close()
        return pipe, cap, result.images[0]

    noise = torch.randn((1, 32, HEIGHT // 16, WIDTH // 16), generator=generator())
    out = {}
    pipe, cap, pixels = run(4, 1.0, True)
    ids, mask, hidden = cap.text[0]
    states = cap.calls[0][1]["encoder_hidden_states"]
    assert torch.equal(states[0], torch.cat([hidden[k][0] for k in taps], dim=-1))
    assert torch.equal(cap.steps[0][0][0], noise[0].reshape(32, -1).t())
    assert len(cap.calls) == 4 and len(cap.text) == 1
    out["tokens.ids"], out["tokens.mask"] = ids[0], mask[0].long()
    out["text_states"] = states[0]
    out["noise"] = noise[0]
    out["sigmas"] = pipe.scheduler.sigmas
    out["model_times"] = torch.cat([kw["timestep"] for _, kw, _ in cap.calls])
    for i, (_, v, x) in enumerate(cap.steps):
        assert torch.equal(v[0], cap.calls[i][2][0])
        out[f"step.{i}.velocity"], out[f"step.{i}.latents"] = v[0], x[0]
    out["step.0.velocity64"] = velocity64(pipe.transformer, cap.calls[0],
                                          pipe.transformer.time_guidance_embed, "time_proj")[0]
    print("klein: step 0, float32 against float64: "
          f"{rel(out['step.0.velocity'], out['step.0.velocity64']):.2e}")
    out["latents"] = cap.vae_in[0]
    out["pixels"], out["image"] = pixels, to_u8(pixels)
    for k, v in cap.blocks.items():
        out[f"debug.{k}"] = v.squeeze(0)
    pil = pipe(prompt=PROMPT, height=HEIGHT, width=WIDTH, num_inference_steps=4,
               guidance_scale=1.0, generator=generator(), text_encoder_out_layers=taps).images[0]
    assert np.array_equal(np.asarray(pil), out["image"].numpy())
    clipped = ((cap.vae_out / 2 + 0.5).sub(0.5).abs() > 0.5).float().mean().item()

    pipe, cap, pixels = run(2, 4.0, False)
    assert len(cap.calls) == 4 and len(cap.text) == 2
    assert torch.equal(cap.steps[0][0][0], noise[0].reshape(32, -1).t())
    assert torch.equal(cap.calls[0][1]["encoder_hidden_states"], states)
    out["cfg.negative.ids"], out["cfg.negative.mask"] = cap.text[1][0][0], cap.text[1][1][0].long()
    out["cfg.negative.text_states"] = cap.calls[1][1]["encoder_hidden_states"][0][:64]
    out["cfg.sigmas"] = pipe.scheduler.sigmas
    for i, (_, v, x) in enumerate(cap.steps):
        cond, uncond = cap.calls[2 * i][2], cap.calls[2 * i + 1][2]
        assert torch.equal(v, uncond + 4.0 * (cond - uncond))
        out[f"cfg.step.{i}.velocity_cond"] = cond[0]
        out[f"cfg.step.{i}.velocity_uncond"] = uncond[0]
        out[f"cfg.step.{i}.velocity"], out[f"cfg.step.{i}.latents"] = v[0], x[0]
    out["cfg.latents"], out["cfg.pixels"] = cap.vae_in[0], pixels

    meta = common_meta("klein", pipe, [32, HEIGHT // 16, WIDTH // 16], steps="4",
                       guidance="1 (off)",
                       cfg="2 steps, guidance 4, negative prompt '', is_distilled false",
                       text_encoder_out_layers=json.dumps(taps), tokens=str(int(mask.sum())))
    write(at("golden.safetensors"), out, meta)
    describe("klein", out)
    print(f"klein: {int(mask.sum())} tokens, {clipped:.1%} of the pixels clipped")

    hf = load_tokenizer(at("tokenizer"))
    write_json(os.path.join(folder, "..", "tokenizer_cases.json"),
               [{"text": t, "ids": hf(t, add_special_tokens=False)["input_ids"]}
                for t in tokenizer_texts()], indent=None, separators=(",", ":"))


# ---------------------------------------------------------------------------
# Z-Image

Z_SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000,
               "shift": 3.0, "use_dynamic_shifting": False}
Z_TRANSFORMER = {"all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 16, "dim": 48,
                 "n_layers": 2, "n_refiner_layers": 1, "n_heads": 3, "n_kv_heads": 3,
                 "norm_eps": 1e-5, "qk_norm": True, "cap_feat_dim": 32, "rope_theta": 256.0,
                 "t_scale": 1000.0, "axes_dims": [4, 6, 6], "axes_lens": [1024, 512, 512]}
Z_VAE = {"in_channels": 3, "out_channels": 3, "down_block_types": ["DownEncoderBlock2D"] * 4,
         "up_block_types": ["UpDecoderBlock2D"] * 4, "block_out_channels": [64, 32, 32, 32],
         "layers_per_block": 2, "latent_channels": 16, "norm_num_groups": 32, "sample_size": 1024,
         "scaling_factor": 0.3611, "shift_factor": 0.1159, "force_upcast": True,
         "use_quant_conv": False, "use_post_quant_conv": False, "mid_block_add_attention": True}


def make_z_image(folder):
    from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline,
                           ZImageTransformer2DModel)
    from transformers import Qwen3Model

    def at(*p):
        return os.path.join(folder, *p)

    tok = make_tokenizer(at("tokenizer"))
    text = make_text_encoder(at("text_encoder"), "z_image.text",
                             qwen3_config(4, 32, 4, 2, 16, 48, tok), shards=2)
    with narrow_timestep_embedder():
        trans = make_part(at("transformer"), "z_image.transformer", ZImageTransformer2DModel,
                          Z_TRANSFORMER)
    # One tensor of the encoder is kept: files of the real size have all of it.
    vae = make_part(at("vae"), "z_image.vae", AutoencoderKL, Z_VAE,
                    drop=r"encoder\.(?!conv_in\.)", dtype=torch.bfloat16)
    write_json(at("scheduler", "scheduler_config.json"), Z_SCHEDULER)
    write_json(at("model_index.json"), {
        "_class_name": "ZImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]})

    ct, cv = comfy_z_image(trans, "model.diffusion_model."), comfy_vae(vae, bfl=False)
    check_comfy("z_image", trans, ct, vae, cv, 4)
    write(at("comfy", "diffusion_model.safetensors"), bf16(ct))
    write(at("comfy", "text_encoder.safetensors"), bf16(text))
    write(at("comfy", "vae.safetensors"), bf16(cv))

    with narrow_timestep_embedder():
        transformer = load_part(at("transformer"), ZImageTransformer2DModel)
    pipe = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(at("scheduler")),
        vae=load_part(at("vae"), AutoencoderKL),
        text_encoder=Qwen3Model.from_pretrained(at("text_encoder"), dtype=torch.float32).eval(),
        tokenizer=load_tokenizer(at("tokenizer")), transformer=transformer)
    pipe.set_progress_bar_config(disable=True)

    def run(**kw):
        return pipe(prompt=PROMPT, height=HEIGHT, width=WIDTH, num_inference_steps=4,
                    guidance_scale=0.0, generator=generator(), **kw).images[0]

    cap = Capture(pipe)
    cap.keep_blocks(["t_embedder", "noise_refiner.0", "context_refiner.0", "layers.0",
                     "layers.1"])
    pixels = run(output_type="pt")
    cap.close()

    out = {}
    noise = torch.randn((1, 16, HEIGHT // 8, WIDTH // 8), generator=generator())
    ids, mask, hidden = cap.text[0]
    states = cap.calls[0][0][2][0]
    real = int(mask.sum())
    # Only the real tokens, after all layers but the last, no norm.
    layers = pipe.text_encoder.layers
    kept = []
    handle = layers[-2].register_forward_hook(lambda m, a, o: kept.append(o))
    pipe.text_encoder(input_ids=ids, attention_mask=mask)
    handle.remove()
    assert torch.equal(states, kept[0][0][:real]) and torch.equal(hidden[-2], kept[0])
    assert torch.equal(cap.steps[0][0], noise) and len(cap.calls) == 4
    out["tokens.ids"], out["tokens.mask"] = ids[0], mask[0].long()
    out["text_states"] = states
    out["noise"] = noise[0]
    out["sigmas"] = pipe.scheduler.sigmas
    out["model_times"] = torch.cat([a[1] for a, _, _ in cap.calls])
    for i, (_, v, x) in enumerate(cap.steps):
        assert torch.equal(v[0], -cap.calls[i][2][0].squeeze(1))
        out[f"step.{i}.velocity"], out[f"step.{i}.latents"] = v[0], x[0]
    v64 = velocity64(transformer, cap.calls[0], transformer.t_embedder, "timestep_embedding")
    out["step.0.velocity64"] = -v64[0].squeeze(1)
    print("z_image: step 0, float32 against float64: "
          f"{rel(out['step.0.velocity'], out['step.0.velocity64']):.2e}")
    out["latents"] = cap.vae_in[0]
    out["pixels"], out["image"] = pixels, to_u8(pixels)
    for k, v in cap.blocks.items():
        out[f"debug.{k}"] = v.squeeze(0)
    assert np.array_equal(np.asarray(run()), out["image"].numpy())
    clipped = ((cap.vae_out / 2 + 0.5).sub(0.5).abs() > 0.5).float().mean().item()

    meta = common_meta("z_image", pipe, [16, HEIGHT // 8, WIDTH // 8], steps="4",
                       guidance="0 (off)", tokens=str(real))
    write(at("golden.safetensors"), out, meta)
    describe("z_image", out)
    print(f"z_image: {real} tokens, {clipped:.1%} of the pixels clipped")


# ---------------------------------------------------------------------------
# Sigmas

def make_sigmas(path):
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux2 import pipeline_flux2_klein as k
    from diffusers.pipelines.z_image import pipeline_z_image as z

    def digits(values):
        return [float(f"{float(v):.9g}") for v in values]

    f32 = np.float32
    out, worst, exact = {"klein": [], "z_image": []}, 0.0, True
    for tokens, steps in ((24, 4), (24, 2), (256, 4), (1024, 4), (4096, 4), (4096, 28), (4300, 4),
                          (4301, 4), (8000, 20), (1024, 1), (1024, 50)):
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(dict(KLEIN_SCHEDULER))
        mu = k.compute_empirical_mu(image_seq_len=tokens, num_steps=steps)
        k.retrieve_timesteps(scheduler, steps, "cpu", sigmas=np.linspace(1.0, 1 / steps, steps),
                             mu=mu)
        got = scheduler.sigmas.numpy()
        out["klein"].append({"image_tokens": tokens, "steps": steps, "mu": mu,
                             "sigmas": digits(got)})
        m10, m200 = 8.73809524e-5 * tokens + 1.89833333, 0.00016927 * tokens + 0.45666666
        a = (m200 - m10) / 190
        own = m200 if tokens > 4300 else a * steps + (m200 - 200 * a)
        assert abs(own - mu) < 1e-12
        s = np.linspace(1, 1 / steps, steps)
        formula = np.append(math.exp(own) / (math.exp(own) + (1 / s - 1)), 0)
        worst = max(worst, float(np.abs(formula - got).max()))
        e = f32(math.exp(own))
        exact &= np.array_equal(np.append(e / (e + (f32(1) / s.astype(f32) - f32(1))), f32(0)), got)
    for steps in (1, 4, 8, 9):
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(dict(Z_SCHEDULER))
        z.retrieve_timesteps(scheduler, steps, "cpu",
                             sigmas=z.get_default_z_image_sigmas(steps), mu=1.0)
        got = scheduler.sigmas.numpy()
        out["z_image"].append({"steps": steps, "shift": 3.0, "sigmas": digits(got)})
        s = np.linspace(1, 1 / steps, steps)
        worst = max(worst, float(np.abs(np.append(3 * s / (1 + 2 * s), 0) - got).max()))
        t = s.astype(f32)
        exact &= np.array_equal(np.append(f32(3) * t / (f32(1) + f32(2) * t), f32(0)), got)
    print(f"sigmas: against the formulas in float64 {worst:.1e}; bit for bit with each operation "
          f"in float32: {exact}")
    out["made_by"] = made_by()
    write_json(path, out)


# ---------------------------------------------------------------------------
# torch.randn

SEEDS = [0, 1, 42, 2 ** 31, 2 ** 32 + 5, 2 ** 63 - 1]
SIZES = [1, 5, 15, 16, 17, 31, 32, 33, 100, 1000, 4096]
SEQUENCE = [5, 3, 17, 1, 16, 2, 33, 1]          # drawn one after the other from one generator


def randn_tensors():
    out = {}
    for seed in SEEDS:
        for n in SIZES:
            g = torch.Generator("cpu").manual_seed(seed)
            out[f"f32.{seed}.{n}"] = torch.randn(n, generator=g)
            if seed in (0, 42, 2 ** 63 - 1) and n <= 1000:
                g = torch.Generator("cpu").manual_seed(seed)
                out[f"f64.{seed}.{n}"] = torch.randn(n, generator=g, dtype=torch.float64)
    for seed in (7, 42):
        g = torch.Generator("cpu").manual_seed(seed)
        for i, n in enumerate(SEQUENCE):
            out[f"sequence.f32.{seed}.{i}"] = torch.randn(n, generator=g)
    return out


def make_random(path):
    """Each capability in a process of its own: torch reads the variable once."""
    results, said = {}, {}
    for capability in ("default", "avx2", "avx512"):
        part = f"{path}.{capability}"
        done = subprocess.run([sys.executable, os.path.abspath(__file__), "--randn", part],
                              env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
                              capture_output=True, text=True, check=True)
        said[capability], results[capability] = done.stdout.split()[0], load_file(part)
        os.remove(part)
    base, simd = results["default"], results["avx2"]
    assert all(torch.equal(simd[k], v) for k, v in results["avx512"].items())
    wrong = [k for k in base if not torch.equal(base[k], simd[k])]
    count = sum(int((base[k] != simd[k]).sum()) for k in wrong)
    gap = max(float((base[k] - simd[k]).abs().max()) for k in wrong)
    assert all(simd[k].dtype == torch.float32 and simd[k].numel() >= 16 for k in wrong)
    note = (f"avx2 and avx512 give the same bits; default differs in {len(wrong)} of {len(base)} "
            f"tensors, {count} of {sum(base[k].numel() for k in wrong)} values, at most {gap:.1e}")
    print(f"random: {said}: {note}")
    assert all(torch.equal(results["default"][f"f32.{2 ** 32 + 5}.{n}"],
                           torch.randn(n, generator=torch.Generator("cpu").manual_seed(5)))
               for n in SIZES if n < 16), "a seed counts by its low 32 bits"
    write(path, {**simd, **{f"default.{k}": base[k] for k in wrong}}, {
        "case": "randn", "torch": torch.__version__, "capabilities": json.dumps(said),
        "note": note, "sequence": json.dumps(SEQUENCE),
        "native": torch.backends.cpu.get_cpu_capability(),
        "names": "f32.<seed>.<size>, f64.<seed>.<size>, sequence.f32.<seed>.<draw>; with a "
                 "default. in front: the same with ATEN_CPU_CAPABILITY=default, where it differs"})


# ---------------------------------------------------------------------------

def size_of(folder):
    return sum(os.path.getsize(os.path.join(d, f))
               for d, _, files in os.walk(folder) for f in files)


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=GOLDEN, help="the golden folder (default: tests/golden)")
    ap.add_argument("--only", default="", help="klein, z_image, sigmas or random")
    ap.add_argument("--randn", help=argparse.SUPPRESS)
    args = ap.parse_args()

    torch.set_num_threads(1)                    # one thread: one summation order
    if args.randn:
        print(torch.backends.cpu.get_cpu_capability())
        return save_file(randn_tensors(), args.randn)

    pipelines = os.path.join(args.out, "pipelines")
    jobs = {"klein": (make_klein, os.path.join(pipelines, "klein")),
            "z_image": (make_z_image, os.path.join(pipelines, "z_image")),
            "sigmas": (make_sigmas, os.path.join(pipelines, "sigmas.json")),
            "random": (make_random, os.path.join(args.out, "random", "randn.safetensors"))}
    for name, (make, path) in jobs.items():
        if args.only in name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with torch.no_grad():
                make(path)
            size = size_of(path) if os.path.isdir(path) else os.path.getsize(path)
            print(f"{name}: {size} bytes")


if __name__ == "__main__":
    main()
