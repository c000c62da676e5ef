#!/usr/bin/env python3
"""Write tests/golden/models/minimax_h3_tiny_diffusers.safetensors.

The weights of minimax_h3_tiny.safetensors beside it (Comfy's names) are put into
diffusers' own MiniMaxH3Transformer3DModel, name by name.  Nothing may be missing
or left over, and the model must give the reference velocities of
minimax_h3_tiny_io.safetensors; what it then holds is the golden.

    python tools/make_h3_goldens.py
"""

import os
import re

import torch
from diffusers import MiniMaxH3Transformer3DModel
from safetensors.torch import load_file, save_file

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "models")
HEAD, HEADS = 32, 4

# Comfy's words and diffusers'.
WORDS = [
    (r"^video_patch_proj\.", "proj_in."),
    (r"^audio_patch_proj\.", "audio_proj_in."),
    (r"^condition_proj\.", "context_embedder."),
    (r"^time_embedder\.proj_in\.", "time_embedder.linear_1."),
    (r"^time_embedder\.proj_out\.", "time_embedder.linear_2."),
    (r"^token_refiner\.blocks\.", "token_refiner.refiner_blocks."),
    (r"^blocks\.", "transformer_blocks."),
    (r"^final_layer\.norm\.", "norm_out.norm."),
    (r"^final_layer\.adaln_proj\.linear\.", "norm_out.linear."),
    (r"^final_layer\.video_out\.", "proj_out."),
    (r"^final_layer\.audio_out\.", "audio_proj_out."),
    (r"\.attn\.q_norm\.", ".attn.norm_q."),
    (r"\.attn\.k_norm\.", ".attn.norm_k."),
    (r"\.attn\.out_proj\.", ".attn.to_out.0."),
    (r"\.mlp\.fc1\.", ".ff.net.0.proj."),
    (r"\.mlp\.fc2\.", ".ff.net.2."),
]


def renamed(comfy):
    out = {}
    for name, tensor in comfy.items():
        for pattern, word in WORDS:
            name = re.sub(pattern, word, name)
        if ".attn.qkv_proj." in name:
            for part, rows in zip("qkv", tensor.chunk(3, dim=0)):
                out[name.replace("qkv_proj", "to_" + part)] = rows.contiguous()
        elif ".ff.net.0.proj." in name:
            gate, up = tensor.chunk(2, dim=0)
            out[name] = torch.cat([up, gate])
        else:
            out[name] = tensor
    return out


def main():
    comfy = load_file(os.path.join(MODELS, "minimax_h3_tiny.safetensors"))
    io = load_file(os.path.join(MODELS, "minimax_h3_tiny_io.safetensors"))
    blocks = {name.split(".")[1] for name in comfy if name.startswith("blocks.")}
    refiners = {name.split(".")[2] for name in comfy if name.startswith("token_refiner.blocks.")}
    width = comfy["condition_proj.weight"].shape[0]
    model = MiniMaxH3Transformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD,
        hidden_size=width,
        num_layers=len(blocks),
        num_refiner_layers=len(refiners),
        ffn_dim=comfy["blocks.0.mlp.fc2.weight"].shape[1],
        in_channels=comfy["video_patch_proj.weight"].shape[1] // 4,
        audio_in_channels=comfy["audio_patch_proj.weight"].shape[1],
        text_dim=comfy["condition_proj.weight"].shape[1],
        freq_dim=comfy["time_embedder.proj_in.weight"].shape[1],
        time_embed_hidden_dim=comfy["time_embedder.proj_in.weight"].shape[0],
        time_embed_dim=comfy["time_embedder.proj_out.weight"].shape[0],
        rope_freq_dim=HEAD // 8,
    ).float()
    model.load_state_dict(renamed(comfy), strict=True)
    with torch.no_grad():
        for case in "ab":
            video, audio = model(
                hidden_states=io["video_rows"].float()[None],
                audio_hidden_states=io["audio_rows"].float()[None],
                encoder_hidden_states=io["text_rows"].float()[None],
                timestep=io["times_" + case].float(),
                timestep_indices=io["time_index"].long(),
                token_tags=io["modality_tags"].long().clamp(min=0),
                position_ids=io["positions"].float(),
                video_indices=io["video_index"].long(),
                audio_indices=io["audio_index"].long(),
                text_indices=io["text_index"].long(),
                return_dict=False,
            )
            for name, ours in (("video", video[0]), ("audio", audio[0])):
                theirs = io[f"{name}_velocity_{case}"].double()
                error = ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()
                print(f"case {case}, {name}: {error:.1e} of the largest value")
                assert error < 2e-5, "the names or the order of rows are not diffusers'"
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, os.path.join(MODELS, "minimax_h3_tiny_diffusers.safetensors"))


if __name__ == "__main__":
    main()
