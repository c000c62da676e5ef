#!/usr/bin/env python3
"""A peer of `parfait bench` (bench/peer.h): PyTorch's bf16 linear and comfy-kitchen's eager layers.

usage: parfait bench --peer "python3 bench/peer_torch.py [--threads 2]"

Methods: torch_bf16 (torch.nn.functional.linear), kitchen_int8 (int8_linear with ConvRot, group 256) and
kitchen_w4a4 (convrot_w4a4_linear, int4 activations), each with a bf16 activation and output. A method
whose package is missing is not offered. Tensors of the last shape are kept between requests.
"""

import argparse
import os
import sys
import time

# Lines of the protocol go to the real standard output; whatever the packages print does not.
protocol = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    import torch

    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    methods = {"torch_bf16": lambda x, w: torch.nn.functional.linear(x, w["bf16"], w["bias"])}
    try:
        from comfy_kitchen.backends.eager import convrot_w4a4, quantization

        methods["kitchen_int8"] = lambda x, w: quantization.int8_linear(
            x, w["int8"], w["scale"], w["bias"], torch.bfloat16, convrot=True, convrot_groupsize=256
        )
        methods["kitchen_w4a4"] = lambda x, w: convrot_w4a4.convrot_w4a4_linear(
            x, w["int4"], w["scale"].flatten(), w["bias"], convrot_groupsize=256
        )
    except ImportError:
        pass

    def weights(n, k):
        return {
            "bf16": torch.randn(n, k, dtype=torch.bfloat16) * 0.02,
            "bias": torch.randn(n, dtype=torch.bfloat16),
            "int8": torch.randint(-127, 128, (n, k), dtype=torch.int8),
            "int4": torch.randint(-128, 128, (n, k // 2), dtype=torch.int8),
            "scale": torch.full((n, 1), 1e-3),
        }

    print("parfait-peer 1", *methods, file=protocol)
    shape, w, x = None, None, None
    for line in sys.stdin:
        name, m, n, k = line.split()
        m, n, k = int(m), int(n), int(k)
        if shape != (n, k):
            w, shape, x = weights(n, k), (n, k), None
        if x is None or x.shape[0] != m:
            x = torch.randn(m, k, dtype=torch.bfloat16)
        try:
            start = time.perf_counter()
            methods[name](x, w)
            print(f"{time.perf_counter() - start:.9f}", file=protocol)
        except (RuntimeError, ValueError, KeyError) as error:
            print(f"{name} {m} {n} {k}: {error}", file=sys.stderr)
            print("-", file=protocol)


if __name__ == "__main__":
    main()
