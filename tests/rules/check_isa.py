"""Instructions of an extension stand in its own kernels only: usage: check_isa.py libparfait.a OBJDUMP NM

Disassembles the archive. An object is named after the instruction set whose kernels it holds (avx2_,
avx_vnni_, avx512_vnni_, avx512_bf16_); all others may hold no VEX- or EVEX-coded instruction at all. An
object of an instruction set may define no weak symbol: the linker could give its copy to the whole program.
x86-64 only.
"""

import re
import subprocess
import sys

# Instructions of sets that stand above a given one.
EVEX = re.compile(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]|\{(z|1to\d+)\}")
VNNI = re.compile(r"\bvpdp(busd|wssd)s?\b")
BF16 = re.compile(r"\bvdpbf16ps\b|\bvcvtne2?ps2bf16\b")
# Sets that no kernel is compiled for, though machines with AVX-512 often have them.
OTHERS = re.compile(
    r"\b(vpermb|vperm[it]2b|vpmultishiftqb|vpmadd52[lh]uq|vpopcnt[bwdq]|vpshufbitqmb|vp(compress|expand)[bw]"
    r"|vpsh[lr]dv?[wdq]|vgf2p8\w+|vaes\w+|vpclmul\w+|vp2intersect\w+|v\w+p[hs]h|tdp\w+)\b"
)
ANY = re.compile(r"\bv(?!err\b|erw\b|mcall\b|mrun\b)[a-z0-9]+\b.*%[xyz]mm|\bvzero(upper|all)\b|\bk[a-z]+[bwdq]\b.*%k\d")
FORBIDDEN = {
    "avx2_": (EVEX, VNNI, BF16, OTHERS),
    "avx_vnni_": (EVEX, BF16, OTHERS),
    "avx512_vnni_": (BF16, OTHERS),
    "avx512_bf16_": (OTHERS,),
    "": (ANY,),
}
HALF_FLOAT = re.compile(r"\bvcvt(ph2ps|ps2ph)\b")  # F16C: part of avx2_ and above


def set_of(member):
    return next(prefix for prefix in FORBIDDEN if member.startswith(prefix))


def check_disassembly(lines):
    """(instructions read by set, violations) of objdump's listing of an archive."""
    member, function, seen, bad = "", "", dict.fromkeys(FORBIDDEN, 0), []
    for line in lines:
        if match := re.match(r"(\S+):\s+file format", line):
            member = match[1].rsplit("/", 1)[-1]
        elif match := re.match(r"[0-9a-f]+ <(.*)>:", line):
            function = match[1]
        elif match := re.match(r"\s+[0-9a-f]+:\t(.*)", line):
            own = set_of(member)
            seen[own] += 1
            text = HALF_FLOAT.sub("", match[1]) if own else match[1]
            if any(pattern.search(text) for pattern in FORBIDDEN[own]):
                bad.append(f"{member}: {function}: {match[1]}")
    return seen, bad


def check_weak(lines):
    """Weak definitions in objects of an instruction set, from nm's portable listing of an archive."""
    member, bad = "", []
    for line in lines:
        if line.endswith(":"):
            member = line.rsplit("[", 1)[-1].rstrip("]:")
        elif set_of(member) and len(line.split()) > 2 and line.split()[1] in "WVu":
            bad.append(f"{member}: defines {line.split()[0]} weakly")
    return bad


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main():
    archive, objdump, nm = sys.argv[1:]
    seen, bad = check_disassembly(output(objdump, "-d", "--no-show-raw-insn", archive))
    bad += check_weak(output(nm, "--defined-only", "--format=posix", archive))
    for name, count in seen.items():
        if count < 100:
            bad.append(f"only {count} instructions of {name or 'all other'} objects were read")
    for line in bad[:50]:
        print(line)
    print(", ".join(f"{name or 'others'} {count}" for name, count in seen.items()), "instructions read,", len(bad), "wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
