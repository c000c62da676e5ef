#!/usr/bin/env python3
"""Run the pipeline of examples/digits with PyTorch and diffusers, as a reference.

    python tools/digits_reference.py                 # write tests/golden/digits/reference.safetensors
    python tools/digits_reference.py --check         # how many of 200 pictures the classifier reads,
                                                     # for every diffusion model of the example
    python tools/digits_reference.py --sheet s.png   # a picture of ten digits in ten seeds
    python tools/digits_reference.py --prompt "a thin handwritten three" --seed 1 --png three.png

The transformer is diffusers' Flux2Transformer2DModel, the text encoder transformers'
Qwen3ForCausalLM and the decoder diffusers' AutoencoderKLFlux2, filled from the files in the
names Comfy and BFL use.  Layers with a .comfy_quant marker run comfy-kitchen's eager linears.
Everything else is computed in float32 from the stored weights.
"""

import argparse
import json
import math
import os
import struct
from importlib.metadata import version

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, Qwen3ForCausalLM
from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel

from comfy_kitchen.backends.eager import convrot_w4a4 as k_w4a4
from comfy_kitchen.backends.eager import quantization as k_q

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "..", "examples", "digits")
GOLDEN = os.path.join(HERE, "..", "tests", "golden", "digits", "reference.safetensors")

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MODELS = {                     # the diffusion models of the example
    "bf16": "originals/digits_bf16.safetensors",
    "int8": "originals/digits_int8.safetensors",
    "mixed": "diffusion_models/digits_mixed.safetensors",
}
ROWS = 512                     # text rows the transformer is given
SIZE = 64                      # pixels
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PAD = "<|endoftext|>"


def save(path, tensors, meta):
    """A safetensors file that is the same byte for byte in every run."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata=meta)
    # The writer puts __metadata__ in random order; sort it.
    with open(path, "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        header["__metadata__"] = dict(sorted(meta.items()))
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= size
        f.seek(8)
        f.write(text.ljust(size))
    os.chmod(path, 0o644)


# ---------------------------------------------------------------------------
# The transformer: names of Comfy and BFL on one side, of diffusers on the other

PLAIN_NAMES = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_guidance_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_guidance_embed.timestep_embedder.linear_2",
    "double_stream_modulation_img.lin": "double_stream_modulation_img.linear",
    "double_stream_modulation_txt.lin": "double_stream_modulation_txt.linear",
    "single_stream_modulation.lin": "single_stream_modulation.linear",
    "final_layer.linear": "proj_out",
}
FINAL = ("final_layer.adaLN_modulation.1", "norm_out.linear")   # its halves are swapped
DOUBLE_NAMES = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img_attn.proj": ("attn.to_out.0",),
    "img_mlp.0": ("ff.linear_in",),
    "img_mlp.2": ("ff.linear_out",),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt_attn.proj": ("attn.to_add_out",),
    "txt_mlp.0": ("ff_context.linear_in",),
    "txt_mlp.2": ("ff_context.linear_out",),
}
DOUBLE_NORMS = {
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
}
SINGLE_NAMES = {"linear1": ("attn.to_qkv_mlp_proj",), "linear2": ("attn.to_out",)}
SINGLE_NORMS = {"norm.query_norm": "attn.norm_q", "norm.key_norm": "attn.norm_k"}


def block_linears(doubles, singles):
    """(Comfy prefix, diffusers prefixes) of the layers that exports quantize."""
    for i in range(doubles):
        for ours, theirs in DOUBLE_NAMES.items():
            yield f"double_blocks.{i}.{ours}", [f"transformer_blocks.{i}.{t}" for t in theirs]
    for i in range(singles):
        for ours, theirs in SINGLE_NAMES.items():
            yield (f"single_blocks.{i}.{ours}",
                   [f"single_transformer_blocks.{i}.{t}" for t in theirs])


def block_norms(doubles, singles):
    for i in range(doubles):
        for ours, theirs in DOUBLE_NORMS.items():
            yield f"double_blocks.{i}.{ours}", f"transformer_blocks.{i}.{theirs}"
    for i in range(singles):
        for ours, theirs in SINGLE_NORMS.items():
            yield f"single_blocks.{i}.{ours}", f"single_transformer_blocks.{i}.{theirs}"


class KitchenLinear(nn.Module):
    """A quantized linear layer as comfy-kitchen computes it on a CPU."""

    def __init__(self, codes, scale, mark):
        super().__init__()
        self.codes, self.scale, self.mark = codes, scale, mark

    def forward(self, x):
        group = self.mark["convrot_groupsize"]
        if self.mark["format"] == "convrot_w4a4":
            return k_w4a4.convrot_w4a4_linear(x, self.codes, self.scale, None, group)
        return k_q.int8_linear(x, self.codes, self.scale, None, x.dtype, convrot=True,
                               convrot_groupsize=group)


def load_transformer(path):
    state = load_file(path)
    doubles = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("double_blocks."))
    singles = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("single_blocks."))
    dim, channels = state["img_in.weight"].shape
    head = state["single_blocks.0.norm.query_norm.scale"].numel()
    mlp = (state["single_blocks.0.linear1.weight"].shape[0] - 3 * dim) // 2
    model = Flux2Transformer2DModel(
        patch_size=1, in_channels=channels, num_layers=doubles, num_single_layers=singles,
        attention_head_dim=head, num_attention_heads=dim // head,
        joint_attention_dim=state["txt_in.weight"].shape[1], timestep_guidance_channels=256,
        mlp_ratio=mlp / dim, axes_dims_rope=(head // 4,) * 4, rope_theta=2000, eps=1e-6,
        guidance_embeds=False)
    theirs = {}
    for a, b in PLAIN_NAMES.items():
        theirs[b + ".weight"] = state.pop(a + ".weight")
    shift, scale = state.pop(FINAL[0] + ".weight").chunk(2)
    theirs[FINAL[1] + ".weight"] = torch.cat([scale, shift])
    for a, b in block_norms(doubles, singles):
        theirs[b + ".weight"] = state.pop(a + ".scale")
    quantized = {}
    for a, parts in block_linears(doubles, singles):
        codes = state.pop(a + ".weight").chunk(len(parts))
        mark = state.pop(a + ".comfy_quant", None)
        if mark is None:
            theirs.update({b + ".weight": w for b, w in zip(parts, codes)})
            continue
        mark = json.loads(bytes(mark.tolist()))
        scales = state.pop(a + ".weight_scale").chunk(len(parts))
        for b, w, s in zip(parts, codes, scales):
            quantized[b] = KitchenLinear(w.contiguous(), s.contiguous(), mark)
    assert not state, sorted(state)
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in theirs.items()},
                                                strict=False)
    assert not unexpected and {m.rsplit(".", 1)[0] for m in missing} == set(quantized)
    for name, layer in quantized.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
    return model.eval().requires_grad_(False)


# ---------------------------------------------------------------------------
# The decoder

def vae_names(levels):
    """diffusers prefix -> BFL prefix for everything but single parameters of attention."""
    names = {"decoder.conv_in": "decoder.conv_in", "decoder.conv_norm_out": "decoder.norm_out",
             "decoder.conv_out": "decoder.conv_out", "post_quant_conv": "decoder.post_quant_conv"}
    part = {"norm1": "norm1", "conv1": "conv1", "norm2": "norm2", "conv2": "conv2",
            "conv_shortcut": "nin_shortcut"}
    for a, b in part.items():
        for i in range(2):
            names[f"decoder.mid_block.resnets.{i}.{a}"] = f"decoder.mid.block_{i + 1}.{b}"
        for i in range(levels):
            for j in range(3):
                names[f"decoder.up_blocks.{i}.resnets.{j}.{a}"] = \
                    f"decoder.up.{levels - 1 - i}.block.{j}.{b}"
    for i in range(levels - 1):
        names[f"decoder.up_blocks.{i}.upsamplers.0.conv"] = \
            f"decoder.up.{levels - 1 - i}.upsample.conv"
    for a, b in {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v",
                 "to_out.0": "proj_out"}.items():
        names[f"decoder.mid_block.attentions.0.{a}"] = f"decoder.mid.attn_1.{b}"
    return names


def load_vae(path):
    state = load_file(path)
    levels = 1 + max(int(k.split(".")[2]) for k in state if k.startswith("decoder.up."))
    channels = [state[f"decoder.up.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)]
    model = AutoencoderKLFlux2(block_out_channels=channels, layers_per_block=2,
                               latent_channels=state["decoder.conv_in.weight"].shape[1],
                               down_block_types=("DownEncoderBlock2D",) * levels,
                               up_block_types=("UpDecoderBlock2D",) * levels, sample_size=SIZE)
    own = model.state_dict()
    theirs = {"bn.running_mean": state.pop("bn.running_mean"),
              "bn.running_var": state.pop("bn.running_var")}
    for a, b in vae_names(levels).items():
        for part in (".weight", ".bias"):
            if a + part in own:
                theirs[a + part] = state.pop(b + part).reshape(own[a + part].shape)
    assert not state, sorted(state)
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in theirs.items()},
                                                strict=False)
    assert not unexpected
    assert all(m.startswith(("encoder.", "quant_conv.", "bn.num")) for m in missing), missing
    return model.eval().requires_grad_(False)


# ---------------------------------------------------------------------------
# Text

class Text:
    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer", "tokenizer.json"))
        self.pad = self.tokenizer.token_to_id(PAD)
        where = os.path.join(folder, "text_encoders")
        config = AutoConfig.from_pretrained(where)
        self.model = Qwen3ForCausalLM(config)
        state = load_file(os.path.join(where, "digits_qwen3.safetensors"))
        missing, unexpected = self.model.load_state_dict(
            {k: v.float() for k, v in state.items()}, strict=False)
        assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)
        self.model.tie_weights()
        self.model.float().eval().requires_grad_(False)
        layers = config.num_hidden_layers
        self.taps = (layers // 4, layers // 2, 3 * layers // 4)

    def ids(self, prompt, rows=ROWS):
        return token_ids(self.tokenizer, self.pad, prompt, rows)

    @torch.no_grad()
    def __call__(self, prompts, rows=ROWS):
        """[prompts, rows, 3 * hidden]: outputs of a quarter, half and three quarters of the layers."""
        out = []
        for prompt in prompts:
            ids, count = self.ids(prompt, rows)
            mask = (torch.arange(rows) < count).long()
            hidden = self.model.model(input_ids=ids[None], attention_mask=mask[None],
                                      output_hidden_states=True, use_cache=False).hidden_states
            out.append(torch.cat([hidden[t][0] for t in self.taps], dim=-1))
        return torch.stack(out)


def token_ids(tokenizer, pad, prompt, rows):
    """Padded ids and how many of them are not padding."""
    ids = tokenizer.encode(TEMPLATE.format(prompt), add_special_tokens=False).ids[:rows]
    return torch.tensor(ids + [pad] * (rows - len(ids))), len(ids)


# ---------------------------------------------------------------------------
# Sampling

def empirical_mu(tokens, steps):
    m10 = 8.73809524e-05 * tokens + 1.89833333
    m200 = 0.00016927 * tokens + 0.45666666
    if tokens > 4300:
        return m200
    a = (m200 - m10) / 190.0
    return a * steps + m200 - 200.0 * a


def schedule(tokens, steps):
    shift = math.exp(empirical_mu(tokens, steps))
    s = torch.linspace(1.0, 1.0 / steps, steps, dtype=torch.float64)
    return torch.cat([shift / (shift + 1.0 / s - 1.0), torch.zeros(1, dtype=torch.float64)]).float()


def image_ids(h, w):
    return torch.cartesian_prod(torch.arange(1), torch.arange(h), torch.arange(w), torch.arange(1))


def text_ids(rows):
    return torch.cartesian_prod(torch.arange(1), torch.arange(1), torch.arange(1),
                                torch.arange(rows))


def noise_for(seed, channels, size=SIZE):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(1, channels, size // 16, size // 16, generator=generator)


@torch.no_grad()
def denoise(model, text, noise, steps, trace=None):
    """Packed latents [B,C,h,w] from noise [B,C,h,w] and text states [B,rows,width]."""
    b, c, h, w = noise.shape
    x = noise.flatten(2).transpose(1, 2)
    sigmas = schedule(h * w, steps)
    for i in range(steps):
        v = model(hidden_states=x, encoder_hidden_states=text, timestep=sigmas[i].expand(b),
                  img_ids=image_ids(h, w), txt_ids=text_ids(text.shape[1]), guidance=None,
                  return_dict=False)[0]
        if trace is not None:
            trace.append(v)
        x = x + (sigmas[i + 1] - sigmas[i]) * v
    return x.transpose(1, 2).reshape(b, c, h, w)


@torch.no_grad()
def decode(vae, packed):
    """Pixels [B,3,H,W] in 0..1."""
    std = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps)
    z = packed * std.view(1, -1, 1, 1) + vae.bn.running_mean.view(1, -1, 1, 1)
    b, c, h, w = z.shape
    z = z.reshape(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * w)
    return (vae.decode(z, return_dict=False)[0] / 2 + 0.5).clamp(0, 1)


def classifier_input(pixels):
    """[B,64]: the picture in grey, averaged over blocks of 8 x 8 pixels."""
    return F.avg_pool2d(pixels.mean(1, keepdim=True), pixels.shape[-1] // 8).flatten(1)


def classify(weights, pixels):
    x = classifier_input(pixels)
    x = torch.relu(F.linear(x, weights["fc1.weight"], weights["fc1.bias"]))
    x = torch.relu(F.linear(x, weights["fc2.weight"], weights["fc2.bias"]))
    return F.linear(x, weights["fc3.weight"], weights["fc3.bias"])


# ---------------------------------------------------------------------------

def sample(model, vae, text, prompts, seeds, steps, batch=20):
    """Pictures [prompts * seeds, 3, 64, 64], prompt by prompt."""
    channels = model.config.in_channels
    states = text(prompts)
    jobs = [(p, s) for p in range(len(prompts)) for s in seeds]
    out = []
    for i in range(0, len(jobs), batch):
        part = jobs[i:i + batch]
        noise = torch.cat([noise_for(s, channels) for _, s in part])
        latents = denoise(model, states[[p for p, _ in part]], noise, steps)
        out.append(decode(vae, latents))
    return torch.cat(out)


def accuracy(folder, path, text, vae, steps, seeds=range(20), template="a handwritten {}"):
    """Share of right answers and the wrong ones as (word, seed, answer)."""
    weights = load_file(os.path.join(folder, "classifier.safetensors"))
    model = load_transformer(path)
    pixels = sample(model, vae, text, [template.format(w) for w in WORDS], seeds, steps)
    answers = classify(weights, pixels).argmax(-1)
    wanted = torch.arange(10).repeat_interleave(len(seeds))
    wrong = [(WORDS[int(wanted[i])], list(seeds)[i % len(seeds)], int(answers[i]))
             for i in (answers != wanted).nonzero().flatten().tolist()]
    return (answers == wanted).double().mean().item(), wrong


def png(path, pixels, columns):
    from PIL import Image
    b, _, h, w = pixels.shape
    gap = 4 if b > 1 else 0
    rows = (b + columns - 1) // columns
    sheet = torch.full((3, rows * (h + gap) - gap, columns * (w + gap) - gap), 0.35)
    for i in range(b):
        y, x = i // columns * (h + gap), i % columns * (w + gap)
        sheet[:, y:y + h, x:x + w] = pixels[i]
    Image.fromarray((sheet * 255).round().byte().permute(1, 2, 0).numpy()).save(path)


def write_golden(folder, path, prompt="a handwritten seven", seed=7, steps=8):
    text, vae = Text(folder), load_vae(os.path.join(folder, "vae", "digits_vae.safetensors"))
    model = load_transformer(os.path.join(folder, MODELS["bf16"]))
    ids, count = text.ids(prompt)
    states = text([prompt])
    noise = noise_for(seed, model.config.in_channels)
    trace = []
    latents = denoise(model, states, noise, steps, trace)
    pixels = decode(vae, latents)
    out = {
        "token_ids": ids,                                   # [512]
        "text_states": states[0],                           # [512, 3 * hidden]
        "noise": noise[0],                                  # [C, h, w]
        "sigmas": schedule(noise.shape[2] * noise.shape[3], steps),   # [steps + 1]
        "velocity": torch.cat(trace),                       # [steps, h * w, C]
        "latents": latents[0],                              # [C, h, w]
        "pixels": pixels[0],                                # [3, 64, 64], 0..1
    }
    meta = {
        "prompt": prompt, "seed": str(seed), "steps": str(steps), "tokens": str(count),
        "model": MODELS["bf16"],
        "made_by": "tools/digits_reference.py with " + ", ".join(
            f"{p} {version(p)}" for p in ("diffusers", "transformers", "torch")),
        "note": "stored weights computed in float32; velocity rows are image tokens (h, w)",
    }
    save(path, out, meta)
    print(f"{path}: {os.path.getsize(path)} bytes, {count} tokens before padding")


def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--example", default=EXAMPLE, help="folder with the files (examples/digits)")
    ap.add_argument("--out", default=GOLDEN, help="golden file to write")
    ap.add_argument("--check", action="store_true", help="measure with the classifier")
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--model", choices=MODELS, default="bf16")
    ap.add_argument("--sheet", metavar="PNG", help="ten digits in ten seeds")
    ap.add_argument("--prompt", default="a handwritten seven")
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--png", metavar="PNG", help="one picture of --prompt and --seed")
    args = ap.parse_args()

    if not (args.check or args.sheet or args.png):
        write_golden(args.example, args.out, args.prompt, args.seed, args.steps)
        return
    text = Text(args.example)
    vae = load_vae(os.path.join(args.example, "vae", "digits_vae.safetensors"))
    if args.check:
        for name, file in MODELS.items():
            path = os.path.join(args.example, file)
            if os.path.exists(path):
                share, wrong = accuracy(args.example, path, text, vae, args.steps)
                print(f"{name:6s} {args.steps} steps: {share:.1%} of 200 right; wrong: {wrong}")
    model = load_transformer(os.path.join(args.example, MODELS[args.model]))
    if args.sheet:
        prompts = [f"a handwritten {w}" for w in WORDS]
        png(args.sheet, sample(model, vae, text, prompts, range(10), args.steps), 10)
    if args.png:
        png(args.png, sample(model, vae, text, [args.prompt], [args.seed], args.steps), 1)


if __name__ == "__main__":
    main()
