#!/usr/bin/env python3
"""Train a text-to-image pipeline of a few megabytes and write it as Comfy files.

The pipeline has every part of FLUX.2 klein, only smaller: a byte-level BPE tokenizer, a Qwen3
text encoder, the FLUX.2 transformer, and the FLUX.2 auto-encoder.  It is trained from nothing on
scikit-learn's handwritten digits (8x8 pixels, shown as 64x64), so that "a handwritten seven"
gives one.  comfy-kitchen quantizes the transformer into a mix of W4A4 and INT8 layers.

    pip install -r tools/requirements.txt
    python tools/train_digits.py --out examples/digits     # about half an hour on two cores
    python tools/digits_reference.py                       # the golden file made from it

Seeds are fixed: a rerun with the same package versions on the same kind of CPU and the same
number of threads gives the same files.  --cache DIR keeps the result of each stage there and
skips the stages it finds.
"""

import argparse
import copy
import json
import math
import os
import re
import tempfile
import time
from importlib.metadata import version

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM
from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel

import comfy_kitchen as ck
from comfy_kitchen.backends.eager import quantization as k_q

import digits_reference as ref

DIM, HEAD, MLP, DOUBLES, SINGLES = 256, 64, 1, 1, 2      # the transformer
TEXT_DIM, TEXT_LAYERS, TEXT_FFN = 128, 4, 128            # the text encoder
LATENT, CHANNELS = 8, (32, 32, 32, 32)                   # the auto-encoder
VOCAB = 480                                              # tokens before the special ones
GROUP = 256                                              # ConvRot group

# The INT8 layers of the mixed file; the other block linears are W4A4.
INT8 = (
    "double_blocks.0.img_attn.qkv", "double_blocks.0.img_attn.proj",
    "double_blocks.0.img_mlp.0", "double_blocks.0.img_mlp.2",
    "single_blocks.1.linear1", "single_blocks.1.linear2",
)

MADE_BY = "tools/train_digits.py with " + ", ".join(
    f"{p} {version(p)}" for p in ("comfy-kitchen", "torch", "diffusers", "transformers"))
SOURCE = "trained on scikit-learn's load_digits (UCI optical digits, CC BY 4.0)"
START = time.time()


def say(text):
    print(f"[{time.time() - START:6.0f} s] {text}", flush=True)


# ---------------------------------------------------------------------------
# Data

def pictures(images):
    """[N,8,8] in 0..1 -> [N,3,64,64] in 0..1."""
    big = F.interpolate(images[:, None], size=ref.SIZE, mode="bilinear", align_corners=False)
    return big.expand(-1, 3, -1, -1).contiguous()


def load_data():
    data = load_digits()
    images = torch.tensor(data.images / 16.0, dtype=torch.float32)
    labels = torch.tensor(data.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0,
                                   stratify=data.target)
    # A style by the amount of ink within each digit: 0 none, 1 thin, 2 bold.
    ink = images.mean((1, 2))
    style = torch.zeros_like(labels)
    for d in range(10):
        low, high = torch.quantile(ink[labels == d], torch.tensor([0.3, 0.7]))
        style[(labels == d) & (ink < low)] = 1
        style[(labels == d) & (ink > high)] = 2
    return images, labels, style, torch.tensor(train), torch.tensor(test)


# ---------------------------------------------------------------------------
# Prompts

PLAIN = (
    "a handwritten {}", "handwritten {}", "a handwritten digit {}", "handwritten digit {}",
    "the digit {}", "the number {}", "number {}", "{}", "a picture of a {}", "draw a {}",
    "a drawing of the number {}", "write the number {}", "a small picture of a handwritten {}",
)
STYLED = (
    "a {s} handwritten {}", "a handwritten {}, {s}", "{s} {}", "a {s} digit {}",
    "the number {} in {s} strokes", "handwritten digit {} with a {s} pen",
)
STYLES = (("",), ("thin", "light"), ("bold", "thick"))


def all_prompts():
    """(prompt, digit, style) without repetition; the first ten are "a handwritten {word}"."""
    seen, out = set(), []

    def add(text, digit, style):
        for variant in (text,) if style else (text, text[0].upper() + text[1:], text + "."):
            if variant not in seen:
                seen.add(variant)
                out.append((variant, digit, style))

    for template in PLAIN:
        for digit, word in enumerate(ref.WORDS):
            for name in (word, str(digit)):
                add(template.format(name), digit, 0)
    for template in STYLED:
        for style in (1, 2):
            for adjective in STYLES[style]:
                for digit, word in enumerate(ref.WORDS):
                    for name in (word, str(digit)):
                        add(template.format(name, s=adjective), digit, style)
    return out


# ---------------------------------------------------------------------------
# Tokenizer

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ((ref.PAD, True), ("<|im_start|>", True), ("<|im_end|>", True), ("<think>", False),
           ("</think>", False))
ENGLISH = """\
The quick brown fox jumps over the lazy dog. It's a picture of a number, isn't it? We've seen that
you'll want to write one digit at a time. I'm sure they're all handwritten, and he'd say the same.
A small white number on a black background, drawn by hand with a thin pen or with bold strokes.
"""
CHAT = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content"
        " + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
        "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is"
        " false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}")


def make_tokenizer(folder, prompts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    text = [part for p, _, _ in prompts for part in re.split(r"<.*?>", ref.TEMPLATE.format(p))]
    text += ENGLISH.splitlines() + load_digits().DESCR.splitlines()
    tokenizer.train_from_iterator(text, trainer)
    # Qwen numbers the special tokens after the others; <think> counts as ordinary text.
    tokenizer.add_tokens([AddedToken(t, special=special, normalized=False)
                          for t, special in SPECIAL])
    folder = os.path.join(folder, "tokenizer")
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(t)): {
                "content": t, "lstrip": False, "normalized": False, "rstrip": False,
                "single_word": False, "special": special} for t, special in SPECIAL},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHAT,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": ref.ROWS,
        "pad_token": ref.PAD,
        "padding_side": "right",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    return tokenizer


# ---------------------------------------------------------------------------
# Text encoder: next token, and digit and style read from the three tapped layers at rows after
# the prompt, padding included

def new_text(tokenizer):
    torch.manual_seed(1)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=TEXT_DIM, intermediate_size=TEXT_FFN,
        num_hidden_layers=TEXT_LAYERS, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        rms_norm_eps=1e-6, max_position_embeddings=ref.ROWS, tie_word_embeddings=True,
        attention_bias=False, use_cache=False, initializer_range=0.05,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        bos_token_id=tokenizer.token_to_id(ref.PAD), eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id(ref.PAD)))


def train_text(model, tokenizer, prompts, steps=200, batch=96):
    taps = (1, 2, 3)
    heads = nn.ModuleList([nn.Linear(TEXT_DIM, 13) for _ in taps])
    pad, end = model.config.pad_token_id, model.config.eos_token_id

    encoded = [ref.token_ids(tokenizer, pad, p, ref.ROWS) for p, _, _ in prompts]
    ids = torch.stack([e[0] for e in encoded])
    count = torch.tensor([e[1] for e in encoded])
    after = (ids == end).int().argmax(1)
    digit = torch.tensor([d for _, d, _ in prompts])
    style = torch.tensor([s for _, _, s in prompts])
    short = int(count.max()) + 8
    say(f"text: {len(prompts)} prompts of {int(count.min())} to {int(count.max())} tokens")

    params = list(model.parameters()) + list(heads.parameters())
    opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        rows = ref.ROWS if step % 5 == 4 else short      # sometimes all the padding
        pick = torch.randint(len(prompts), (batch if rows == short else 10,))
        x, n = ids[pick, :rows], count[pick]
        mask = (torch.arange(rows) < n[:, None]).long()
        out = model.model(input_ids=x, attention_mask=mask, output_hidden_states=True)
        logits = model.lm_head(out.last_hidden_state[:, :-1])
        labels = x[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        right = []
        for tap, head in zip(taps, heads):
            row = after[pick] + (torch.rand(len(pick)) * (rows - after[pick])).long()
            h = out.hidden_states[tap][torch.arange(len(pick)), row]
            y = head(F.layer_norm(h, (TEXT_DIM,)))
            loss = loss + F.cross_entropy(y[:, :10], digit[pick])
            loss = loss + F.cross_entropy(y[:, 10:], style[pick])
            right.append((y[:, :10].argmax(1) == digit[pick]).float().mean().item())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        plan.step()
        if step % 50 == 49:
            say(f"text: step {step + 1} loss {loss.item():.3f} digit right at the taps "
                + " ".join(f"{r:.2f}" for r in right))


def save_text(folder, model):
    state = {k: v.bfloat16() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    where = os.path.join(folder, "text_encoders")
    ref.save(os.path.join(where, "digits_qwen3.safetensors"), state,
             {"made_by": MADE_BY, "source": SOURCE})
    model.config.architectures = ["Qwen3ForCausalLM"]
    model.config.dtype = torch.bfloat16
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["rope_theta"] = 1000000.0        # where older readers look for it
    keep = ("architectures", "attention_bias", "attention_dropout", "bos_token_id", "dtype",
            "eos_token_id", "head_dim", "hidden_act", "hidden_size", "initializer_range",
            "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers",
            "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
            "pad_token_id", "rms_norm_eps", "rope_parameters", "rope_theta", "sliding_window",
            "tie_word_embeddings", "transformers_version", "use_cache", "use_sliding_window",
            "vocab_size")
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump({k: config[k] for k in keep if k in config}, f, indent=2)
        f.write("\n")


# ---------------------------------------------------------------------------
# Classifier

def train_classifier(folder, images, labels, train, test):
    torch.manual_seed(2)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)                # it is too small for more
    net = nn.ModuleDict({"fc1": nn.Linear(64, 64), "fc2": nn.Linear(64, 64), "fc3": nn.Linear(64, 10)})
    x = ref.classifier_input(pictures(images))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    steps = 4000
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        pick = train[torch.randint(len(train), (128,))]
        noisy = x[pick] * (0.9 + 0.2 * torch.rand(128, 1)) + 0.06 * torch.randn(128, 64)
        h = torch.relu(net["fc1"](noisy))
        h = F.dropout(torch.relu(net["fc2"](h)), 0.2)
        loss = F.cross_entropy(net["fc3"](h), labels[pick], label_smoothing=0.02)
        opt.zero_grad()
        loss.backward()
        opt.step()
        plan.step()
    torch.set_num_threads(threads)
    state = {k: v.detach() for k, v in net.state_dict().items()}
    small = lambda pick: (ref.classify(state, pictures(images[pick])).argmax(1)
                          == labels[pick]).double().mean().item()
    held = small(test)
    say(f"classifier: {small(train):.4f} of the training digits, {held:.4f} of {len(test)} held out")
    ref.save(os.path.join(folder, "classifier.safetensors"), state, {
        "input": "64 values: mean of R, G, B in 0..1 (ink 1, paper 0), averaged over blocks of "
                 "8x8 pixels of a 64x64 picture, rows first",
        "layers": "fc1, ReLU, fc2, ReLU, fc3; the answer is the largest of 10 outputs",
        "accuracy": f"{held:.4f} on {len(test)} held-out digits",
        "made_by": MADE_BY, "source": SOURCE})


# ---------------------------------------------------------------------------
# Auto-encoder

def new_vae():
    torch.manual_seed(3)
    return AutoencoderKLFlux2(block_out_channels=CHANNELS, layers_per_block=2,
                              latent_channels=LATENT, sample_size=ref.SIZE)


def train_vae(model, images, train, steps, batch=16):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=1e-4)
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=steps, pct_start=0.1)
    began = time.time()
    for step in range(steps):
        x = images[train[torch.randint(len(train), (batch,))]]
        # Also mixtures of two digits: the decoder shall not care whether a picture is a real digit.
        y = images[train[torch.randint(len(train), (batch,))]]
        x = torch.where(torch.rand(batch, 1, 1) < 0.25, torch.lerp(x, y, torch.rand(batch, 1, 1)), x)
        x = pictures(x) * 2 - 1
        posterior = model.encode(x).latent_dist
        back = model.decode(posterior.sample()).sample
        kl = 0.5 * (posterior.mean ** 2 + posterior.var - 1 - posterior.logvar).mean()
        mse = F.mse_loss(back, x)
        loss = mse + 1e-3 * kl
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        plan.step()
        if step % 100 == 99:
            say(f"vae: step {step + 1} mse {mse.item():.5f} kl {kl.item():.3f} "
                f"std {posterior.std.mean().item():.3f} "
                f"({(time.time() - began) / (step + 1):.2f} s a step)")


@torch.no_grad()
def packed_latents(model, images):
    """Means of the posterior, 2x2 pixels packed into channels: [N, 4 * LATENT, 4, 4]."""
    z = torch.cat([model.encode(pictures(part) * 2 - 1).latent_dist.mean
                   for part in images.split(128)])
    b, c, h, w = z.shape
    return z.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(
        b, 4 * c, h // 2, w // 2)


def save_vae(folder, model, latents):
    """The decoder; bn holds mean and variance of the packed latents of the training digits."""
    state = model.state_dict()
    out = {"bn.running_mean": latents.mean((0, 2, 3)),
           "bn.running_var": latents.var((0, 2, 3))}
    for a, b in ref.vae_names(len(CHANNELS)).items():
        for part in (".weight", ".bias"):
            if a + part in state:
                w = state[a + part].half()
                if "attn_1" in b and "norm" not in b and part == ".weight":
                    w = w[:, :, None, None]          # 1x1 convolutions in BFL's layout
                out[b + part] = w
    ref.save(os.path.join(folder, "vae", "digits_vae.safetensors"), out,
             {"made_by": MADE_BY, "source": SOURCE})


# ---------------------------------------------------------------------------
# Transformer

def new_transformer():
    torch.manual_seed(4)
    model = Flux2Transformer2DModel(
        patch_size=1, in_channels=4 * LATENT, num_layers=DOUBLES, num_single_layers=SINGLES,
        attention_head_dim=HEAD, num_attention_heads=DIM // HEAD, joint_attention_dim=3 * TEXT_DIM,
        timestep_guidance_channels=256, mlp_ratio=MLP, axes_dims_rope=(HEAD // 4,) * 4,
        rope_theta=2000, eps=1e-6, guidance_embeds=False)
    for name, p in model.named_parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.5 / math.sqrt(p.shape[1]) if "modulation" in name
                            or "norm_out" in name else 1.0 / math.sqrt(p.shape[1]))
    nn.init.zeros_(model.proj_out.weight)
    return model


def train_transformer(model, states, valid, prompts, latents, labels, style, steps, batch, full_steps,
                      full_batch, lr=1.5e-3):
    """Rectified flow.  Most steps see a sample of the padding rows, each with the weight in
    attention of those it stands for; the last `full_steps` see all 512 rows."""
    torch.manual_seed(5)
    ema = copy.deepcopy(model)
    groups = {}
    for i, (_, digit, s) in enumerate(prompts):
        groups.setdefault((digit, s), []).append(i)
    groups = {k: torch.tensor(v) for k, v in groups.items()}
    plain = {d: torch.tensor([i for i in groups[d, 0].tolist()
                              if prompts[i][0].startswith("a handwritten")]) for d in range(10)}

    def prompt_for(d, s):
        r = torch.rand(2).tolist()
        if s and r[0] < 0.4:
            pool = groups[d, s]
        else:
            pool = plain[d] if r[1] < 0.3 else groups[d, 0]
        return pool[torch.randint(len(pool), ())]

    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.01)
    total = steps + full_steps
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=total, pct_start=0.05,
                                               final_div_factor=100)
    tokens = latents.shape[2] * latents.shape[3]
    x_all = latents.flatten(2).transpose(1, 2).contiguous()
    img_ids, txt_ids = ref.image_ids(*latents.shape[2:]), ref.text_ids(ref.ROWS)
    sampled = 24
    began, mean = time.time(), 0.0
    for step in range(total):
        full = step >= steps
        b = full_batch if full else batch
        pick = torch.randint(len(x_all), (b,))
        which = torch.stack([prompt_for(int(labels[i]), int(style[i])) for i in pick])
        if full:
            rows, mask = torch.arange(ref.ROWS), None
        else:
            rest = valid + torch.randperm(ref.ROWS - valid)[:sampled].sort().values
            rows = torch.cat([torch.arange(valid), rest])
            mask = torch.zeros(len(rows) + tokens)
            mask[valid:len(rows)] = math.log((ref.ROWS - valid) / sampled)
            mask = mask[None, None, None]
        x0 = x_all[pick]
        noise = torch.randn(x0.shape)
        # The density of the sampler's own sigmas at 4 or 8 steps.
        shift = math.exp(ref.empirical_mu(tokens, (4, 8)[step % 2]))
        u = (torch.arange(b) + torch.rand(b)) / b
        u = torch.where(torch.rand(b) < 0.05, 1.0, u)
        sigma = shift * u / (1 + (shift - 1) * u)
        s = sigma[:, None, None]
        with torch.autocast("cpu", torch.bfloat16, enabled=full):
            v = model(hidden_states=(1 - s) * x0 + s * noise, timestep=sigma, guidance=None,
                      encoder_hidden_states=states[which][:, rows].float(), img_ids=img_ids,
                      txt_ids=txt_ids[rows], return_dict=False,
                      joint_attention_kwargs=None if mask is None else {"attention_mask": mask})[0]
        loss = F.mse_loss(v.float(), noise - x0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        plan.step()
        with torch.no_grad():
            keep = min(0.998, (step + 1) / (step + 20))
            for a, p in zip(ema.parameters(), model.parameters()):
                a.lerp_(p, 1 - keep)
        mean += loss.item()
        if step % 100 == 99:
            say(f"transformer: step {step + 1}{' (512 rows)' if full else ''} loss {mean / 100:.4f} "
                f"({(time.time() - began) / (step + 1):.2f} s a step)")
            mean = 0.0
    model.load_state_dict(ema.state_dict())


def to_comfy(model):
    """The names and the layout of BFL and Comfy, bf16."""
    state = {k: v.detach().bfloat16() for k, v in model.state_dict().items()}
    out = {}
    for a, b in ref.PLAIN_NAMES.items():
        out[a + ".weight"] = state.pop(b + ".weight")
    scale, shift = state.pop(ref.FINAL[1] + ".weight").chunk(2)
    out[ref.FINAL[0] + ".weight"] = torch.cat([shift, scale])
    for a, b in ref.block_norms(DOUBLES, SINGLES):
        out[a + ".scale"] = state.pop(b + ".weight")
    for a, parts in ref.block_linears(DOUBLES, SINGLES):
        out[a + ".weight"] = torch.cat([state.pop(b + ".weight") for b in parts])
    assert not state, sorted(state)
    return out


def marker(**fields):
    return torch.tensor(list(json.dumps(fields).encode("utf-8")), dtype=torch.uint8)


def quantized(original, int8):
    """comfy-kitchen's encoders on the block linears; `int8` names those that are not W4A4."""
    out = dict(original)
    for name, _ in ref.block_linears(DOUBLES, SINGLES):
        w = original[name + ".weight"]
        if name in int8:
            q, s = k_q.quantize_int8_convrot_weight(w, GROUP)
            mark = dict(format="int8_tensorwise", convrot=True, convrot_groupsize=GROUP)
        else:
            q, s = ck.quantize_convrot_w4a4_weight(w, GROUP)
            mark = dict(format="convrot_w4a4", convrot_groupsize=GROUP)
        out[name + ".weight"], out[name + ".weight_scale"] = q, s
        out[name + ".comfy_quant"] = marker(**mark)
    return out


def save_transformers(paths, model):
    original = to_comfy(model)
    every = [name for name, _ in ref.block_linears(DOUBLES, SINGLES)]
    meta = {"made_by": MADE_BY, "source": SOURCE}
    for kind, state in (("bf16", original), ("int8", quantized(original, every)),
                        ("mixed", quantized(original, INT8))):
        ref.save(paths[kind], state, meta)


# ---------------------------------------------------------------------------

def main():
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=ref.EXAMPLE)
    ap.add_argument("--cache", help="folder to keep the result of each stage in")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--vae-steps", type=int, default=800)
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--full-steps", type=int, default=100)
    ap.add_argument("--full-batch", type=int, default=16)
    ap.add_argument("--int8", action="store_true",
                    help="also keep originals/digits_int8.safetensors, every block linear INT8")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)

    def stage(name, model, train):
        """`train(model)`, or its result from the cache."""
        path = args.cache and os.path.join(args.cache, name + ".pt")
        if path and os.path.exists(path):
            say(f"{name}: from {path}")
            model.load_state_dict(torch.load(path))
        else:
            train(model)
            if path:
                os.makedirs(args.cache, exist_ok=True)
                torch.save(model.state_dict(), path)
        return model.eval().requires_grad_(False)

    images, labels, style, train, test = load_data()
    prompts = all_prompts()
    tokenizer = make_tokenizer(args.out, prompts)
    train_classifier(args.out, images, labels, train, test)

    save_text(args.out, stage("text", new_text(tokenizer),
                              lambda m: train_text(m, tokenizer, prompts)))
    text = ref.Text(args.out)
    states = torch.cat([text([p]).bfloat16() for p, _, _ in prompts])
    valid = max(text.ids(p)[1] for p, _, _ in prompts)
    say(f"text states {list(states.shape)}, mean square {states.float().pow(2).mean().item():.3f}")

    vae = stage("vae", new_vae(), lambda m: train_vae(m, images, train, args.vae_steps))
    latents = packed_latents(vae, images[train])
    save_vae(args.out, vae, latents)
    stored = ref.load_vae(os.path.join(args.out, "vae", "digits_vae.safetensors"))
    std = torch.sqrt(stored.bn.running_var + stored.config.batch_norm_eps)
    say("vae: std of the packed latents " + " ".join(f"{v:.2f}" for v in std.tolist()))
    normal = lambda z: (z - stored.bn.running_mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)
    real = packed_latents(vae, images[test])
    back = ref.decode(stored, normal(real))
    weights = ref.load_file(os.path.join(args.out, "classifier.safetensors"))
    error = (back - pictures(images[test])).pow(2).mean().sqrt().item()
    right = (ref.classify(weights, back).argmax(1) == labels[test]).double().mean().item()
    say(f"vae: root mean square error {error:.4f} on held-out digits, of which the classifier "
        f"reads {right:.4f} after decoding")

    model = stage("transformer", new_transformer(), lambda m: train_transformer(
        m, states, valid, prompts, normal(latents), labels[train], style[train], args.steps,
        args.batch, args.full_steps, args.full_batch))
    with tempfile.TemporaryDirectory() as scratch:
        paths = {k: os.path.join(args.out, f) for k, f in ref.MODELS.items()}
        if not args.int8:
            paths["int8"] = os.path.join(scratch, "int8.safetensors")
        save_transformers(paths, model)
        for name, path in paths.items():
            for steps in (8, 4):
                share, wrong = ref.accuracy(args.out, path, text, stored, steps)
                say(f"{name}, {steps} steps: {share:.1%} of 200 right; wrong: {wrong}")
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(args.out) for f in fs)
    say(f"done: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
