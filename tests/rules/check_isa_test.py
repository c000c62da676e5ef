"""Shows that check_isa.py finds what it is there to find."""

import unittest

import check_isa


def listing(member, *instructions):
    return [f"{member}:     file format elf64-x86-64", "", "0000000000000000 <f>:"] + [
        f"   {i:x}:\t{text}" for i, text in enumerate(instructions)
    ]


class CheckIsa(unittest.TestCase):
    def test_good(self):
        for member, text in (
            ("session.cc.o", "movss  (%rax),%xmm0"),
            ("session.cc.o", "verr   %ax"),
            ("avx2_float.cc.o", "vfmadd231ps %ymm1,%ymm2,%ymm3"),
            ("avx2_float.cc.o", "vcvtph2ps %xmm0,%ymm0"),
            ("avx_vnni_multiply.cc.o", "{vex} vpdpbusd %ymm1,%ymm2,%ymm3"),
            ("avx512_vnni_multiply.cc.o", "vpdpbusd %zmm1,%zmm2,%zmm31"),
            ("avx512_bf16_attention.cc.o", "vdpbf16ps %zmm1,%zmm2,%zmm3"),
        ):
            with self.subTest(member=member, text=text):
                self.assertEqual(check_isa.check_disassembly(listing(member, text))[1], [])

    def test_bad(self):
        for member, text in (
            ("session.cc.o", "vmovss (%rax),%xmm0"),
            ("session.cc.o", "vzeroupper"),
            ("session.cc.o", "kmovw  %eax,%k1"),
            ("avx2_float.cc.o", "vaddps %zmm1,%zmm2,%zmm3"),
            ("avx2_float.cc.o", "vaddps %ymm1,%ymm2,%ymm17"),
            ("avx2_float.cc.o", "vmovdqu8 %ymm1,(%rax){%k1}"),
            ("avx2_multiply.cc.o", "vpdpbusd %ymm1,%ymm2,%ymm3"),
            ("avx_vnni_multiply.cc.o", "vpdpbusd %zmm1,%zmm2,%zmm3"),
            ("avx512_vnni_multiply.cc.o", "vdpbf16ps %zmm1,%zmm2,%zmm3"),
            ("avx512_vnni_multiply.cc.o", "vpermb %zmm1,%zmm2,%zmm3"),
        ):
            with self.subTest(member=member, text=text):
                self.assertEqual(len(check_isa.check_disassembly(listing(member, text))[1]), 1)

    def test_weak(self):
        lines = ["lib.a[avx2_float.cc.o]:", "_ZSt3minv W 0 1b", "lib.a[session.cc.o]:", "_ZSt3maxv W 0 1b"]
        self.assertEqual(check_isa.check_weak(lines), ["avx2_float.cc.o: defines _ZSt3minv weakly"])


unittest.main()
