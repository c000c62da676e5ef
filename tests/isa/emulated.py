"""The program under an emulated processor: usage: emulated.py QEMU CPU BEST_ISA PARFAIT SOURCE_DIR

It opens a file with a layer of every format with no option, plans the best instruction set that the processor
has, refuses one that it has not, and its layers give the bytes that they give on this machine.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

qemu, cpu, best, parfait, source = sys.argv[1:]
FILE = str(pathlib.Path(source, "tests/golden/formats/all_formats.safetensors"))
environment = {name: value for name, value in os.environ.items() if name != "PARFAIT_ISA"}


def run(*arguments, emulated=True):
    command = [qemu, "-cpu", cpu, parfait] if emulated else [parfait]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)


def check(condition, *what):
    if not condition:
        sys.exit(" ".join(str(part) for part in what))


plan = run("plan", FILE, "--json")
check(plan.returncode == 0, plan.stderr)
kernels = {layer["kernel"] for layer in json.loads(plan.stdout)["layers"]} - {"none", "decode.rows"}
check(len(kernels) >= 4, "only", kernels)
check(all(kernel.endswith("." + best) for kernel in kernels), "expected", best, "but planned", kernels)

for absent in ("avx512_vnni", "avx2") if best == "reference" else ("avx512_vnni",):
    refused = run("plan", FILE, "--isa", absent)
    check(refused.returncode == 2 and absent in refused.stderr, "asked for", absent, refused)

with tempfile.TemporaryDirectory() as folder:
    outputs = []
    for emulated in (True, False):
        out = os.path.join(folder, f"{emulated}.safetensors")
        done = run("run", FILE, "--rows", "3", "--verify", "--repeat", "1", "-o", out, emulated=emulated)
        check(done.returncode == 0, done.stdout, done.stderr)
        outputs.append(pathlib.Path(out).read_bytes())
    check(len(outputs[0]) > 1000 and outputs[0] == outputs[1], "the outputs differ from this machine's")
print("kernels", sorted(kernels), "equal", len(outputs[0]), "bytes")
