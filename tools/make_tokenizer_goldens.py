#!/usr/bin/env python3
"""Write tests/golden/pipelines/tokenizer_nasty.json: hard texts and the ids that the `tokenizers`
package gives them with the tokenizer of the tiny pipelines.

    pip install tokenizers==0.23.3
    python tools/make_tokenizer_goldens.py

Every character is named here by its number, and the pseudo-random texts come from a generator
written out below, so that neither Python's Unicode tables nor its random module matter. Left out is
what src/pipeline/tokenizer is known to do differently (docs/models.md): characters newer than
Unicode 15, marks newer than Unicode 9 (U+09FE) beside others, and U+11A7 after a Hangul syllable.
"""

import json
import os
import unicodedata

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "tests", "golden", "pipelines")

# Some of each general category, from several blocks and planes. Cs, lone surrogates, is no text.
CATEGORIES = {
    "Lu": [0x41, 0xc0, 0x130, 0x1c4, 0x391, 0x410, 0x531, 0x10a0, 0x1e9e, 0x2126, 0x10400, 0x1d400],
    "Ll": [0x61, 0xb5, 0xdf, 0x131, 0x149, 0x17f, 0x3c2, 0x450, 0x587, 0x1e9b, 0xfb03, 0x10428],
    "Lt": [0x1c5, 0x1c8, 0x1cb, 0x1f2, 0x1f88, 0x1f98, 0x1fa8, 0x1fbc, 0x1ffc],
    "Lm": [0x2b0, 0x2c6, 0x37a, 0x559, 0x640, 0xe46, 0x1843, 0x3005, 0x309d, 0x30fc, 0xa015, 0xff70],
    "Lo": [0xaa, 0x1bb, 0x5d0, 0x627, 0x904, 0xe01, 0x1100, 0x3042, 0x4e00, 0xac00, 0xf900, 0x20000],
    "Mn": [0x300, 0x327, 0x345, 0x483, 0x591, 0x64b, 0x94d, 0xe31, 0x1dc0, 0x20d0, 0x302a,
           0xfe0f, 0x1d167, 0xe0100],
    "Mc": [0x903, 0x93e, 0x9be, 0xbbe, 0xcc0, 0xdcf, 0x102b, 0x17b6, 0x302e, 0x1d165],
    "Me": [0x488, 0x489, 0x1abe, 0x20dd, 0x20e3, 0xa670],
    "Nd": [0x30, 0x661, 0x6f5, 0x7c3, 0x967, 0x9e9, 0xe53, 0xf22, 0x17e4, 0xff15, 0x104a2, 0x1d7d8],
    "Nl": [0x16ee, 0x2160, 0x2180, 0x2188, 0x3007, 0x3021, 0xa6e6, 0x10140, 0x12400],
    "No": [0xb2, 0xbd, 0x9f4, 0xf2a, 0x1369, 0x2070, 0x2153, 0x2460, 0x3220, 0x10107, 0x1f100],
    "Pc": [0x5f, 0x203f, 0x2054, 0xfe33, 0xff3f],
    "Pd": [0x2d, 0x58a, 0x5be, 0x1400, 0x2010, 0x2014, 0x301c, 0xfe31, 0xff0d],
    "Ps": [0x28, 0x5b, 0xf3a, 0x201a, 0x2045, 0x3008, 0xfe35, 0xff08],
    "Pe": [0x29, 0x7d, 0xf3b, 0x2046, 0x3009, 0xfe36, 0xff09],
    "Pi": [0xab, 0x2018, 0x201c, 0x2039, 0x2e02, 0x2e20],
    "Pf": [0xbb, 0x2019, 0x201d, 0x203a, 0x2e03, 0x2e21],
    "Po": [0x21, 0x27, 0xa1, 0x37e, 0x5c0, 0x60c, 0x964, 0xe4f, 0x2020, 0x3001, 0xff01, 0x1039f],
    "Sm": [0x2b, 0x3c, 0x7c, 0xac, 0xd7, 0x3f6, 0x2044, 0x2200, 0x2260, 0xff0b, 0x1d6c1],
    "Sc": [0x24, 0xa2, 0x58f, 0x60b, 0x9f2, 0xe3f, 0x20ac, 0xfdfc, 0xffe5],
    "Sk": [0x5e, 0x60, 0xa8, 0xb4, 0x2c2, 0x309b, 0xa700, 0xff3e, 0x1f3fb],
    "So": [0xa6, 0xa9, 0x482, 0xbf3, 0xf01, 0x2100, 0x2195, 0x2603, 0x3004, 0xfffc, 0x1f353, 0x1f600],
    "Zs": [0x20, 0xa0, 0x1680, 0x2000, 0x2001, 0x2003, 0x2009, 0x202f, 0x205f, 0x3000],
    "Zl": [0x2028],
    "Zp": [0x2029],
    "Cc": [0x0, 0x1, 0x9, 0xa, 0xb, 0xc, 0xd, 0x1c, 0x1f, 0x7f, 0x85, 0x9f],
    "Cf": [0xad, 0x600, 0x61c, 0x180e, 0x200b, 0x200d, 0x200e, 0x202e, 0x2060, 0xfeff, 0xe0041],
    "Co": [0xe000, 0xf8ff, 0xf0000, 0xffffd, 0x100000, 0x10fffd],
    "Cn": [0x378, 0x530, 0xfdd0, 0xfffe, 0xffff, 0x1fffe, 0xe0080, 0x10ffff],
}

# Sequences whose order, composition or exclusion matters to NFC.
MARKS = [
    "e\u0301", "\u00e9", "a\u0308\u0301", "a\u0301\u0308", "\u01d7 u\u0308\u0301 \u00fc\u0301",
    "q\u0323\u0307q\u0307\u0323", "d\u0323\u0307 \u1e0b\u0323 \u1e0d\u0307", "s\u0323\u0307 \u1e69",
    "\u0344 \u0308\u0301", "a\u0315\u0300\u05ae\u0062", "\u1ea5 a\u0302\u0301 \u00e2\u0301 \u00e1\u0302",
    "\u212b \u00c5 A\u030a", "\u2126 \u03a9", "\u212a K", "\u0340 \u0341 \u0343 \u0374 \u037e \u0387",
    "\u0958 \u0915\u093c \u09dc \u0a36", "\u0b94 \u0b92\u0bd7", "\u0ccb \u0cc6\u0cc2\u0cd5",
    "\u0f73 \u0f71\u0f72 \u0f81", "\u0f77 \u0fb2\u0f81", "\u2adc \u2add\u0338", "\u226e <\u0338",
    "\ufb1d \u05d9\u05b4 \ufb2c", "\ufb49 \u05e9\u05bc\u05c2",
    "\U0001d15e \U0001d157\U0001d165", "\U0002f800 \u4e3d", "\uf900 \u8c48", "\ufa10 \ufa0e",
    "\u1f80 \u03b1\u0313\u0345 \u03b1\u0345\u0313", "\u0390 \u03b9\u0308\u0301 \u1fd3",
    "x" + "\u0323\u0301" * 40, "\u0301 begins", " \u0301 space", "\n\u0301line", "1\u0301 2\u20e3",
    "!\u0301?\u0327", "\u0627\u0653 \u0622 \u0624", "\u064e\u0651 \u0651\u064e", "\u05b0\u05bc\u05c1",
    "\u0e01\u0e49\u0e33", "\u1ebf\u0323 \u1ec7\u0301", "\u3099 \u304b\u3099 \u30cf\u309a \u304c",
    "\u01c4\u01c5\u01c6 \ufb01\ufb03 \u0133", "\u00bd \u2153 \u33a5 \u2075", "o\u031b\u0323\u0301",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f",
]

HANGUL = [
    "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\uac00 \uac01 \ud7a3", "\u1112\u1175\u11c2",
    "\u1100 \u1161 \u11a8", "\u1161\u11a8", "\u1100\u11a8", "\u1100\u1100\u1161", "\uac01\u11a8",
    "\u1100\u1161\u1161", "\ua960\u1161", "\u1100\ud7b0", "\u1113\u1161", "\uac00\ud7cb",
    "\u115f\u1160", "\u3131\u314f", "\uffa1\uffc2", "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab\u1100\u116e\u11a8",
    "\u1100\u0301\u1161", "\u1100\u1161\u0301\u11a8", "\u1100\u3099\u1161", "a\u1161\u11a8b",
]

EMOJI = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd",
    "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1eb\U0001f1f7\U0001f1ef", "1\ufe0f\u20e3#\ufe0f\u20e3",
    "\u2764\ufe0f \u2764\ufe0e \u2764", "\U0001f9d1\U0001f3ff\u200d\U0001f680 go", "a\U0001f353b",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u200d\u200d",
    "x\u200dy \u0915\u094d\u200d\u0937", "\U0001f602\U0001f602\U0001f602 !!\U0001f602", "\ufe0f",
    " \U0001f353 \U0001f353\n\U0001f353\r\n", "\U0001f353's \U0001f353've", "\u00a9\ufe0f\u2122",
]

RTL = [
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u202bab\u202c \u200fx",
    "\u0627\u0644\u0633\u0639\u0631 12.5 \u062f\u0648\u0644\u0627\u0631", "\u06f1\u06f2\u06f3\u060c \u0661\u0662",
    "\u202eevil\u202d", "\u2067x\u2069\u2066y\u2069", "\ufdfa \ufe8d\ufeee", "\u0644\u0627 \ufefb",
    "\u0647\u0640\u0640\u0640\u0630\u0627", "\u0710\u0712 \u0780\u07a6 \u07ca", "a \u05d0 b \u0627 c",
    "\u061c\u061f\u061b \u05f3\u05f4", "\u06dd\u0661\u0662 \u08e2",
]

SPACES = [
    " ", "  ", "   ", " " * 17, "\t", "\t\t", "\t \t", " \t ", "\n", "\n\n\n", "\r", "\r\r", "\r\n",
    "\n\r", "\r\n\r\n", "\n\r\n\r", "\r\r\n\n", " \r\n", "\r\n ", " \n ", "\n \n", "  \n\n  ",
    "a\r\nb", "a\rb", "a\n\rb", "a \r\n b", "a\t\r\n\tb", "a\n  b", "a\n\n\n b", "a  \n", "a \n  \n",
    "\u00a0", "\u00a0\u00a0", "a\u00a0b", "a \u00a0b", "a\u00a0 b", "a\u00a0\nb", "\u00a0a", "\u00a01",
    "\u00a0!", "\u3000", "\u3000\u3000", "a\u3000b", "a\u3000\u3000b", "\u3000\n\u3000", "\u30001",
    "\u3000!", "\u2028", "\u2029", "a\u2028b", "a\u2029\u2029b", "\u2028\n", "\u0085", "a\u0085\u0085b",
    "\u000b\u000c", "a\u000bb", "a\u000c\nb", "\u001c\u001d\u001e\u001f", "a\u001cb", "\u200b",
    "a\u200bb", "\ufeffa", "a\ufeff b", "\u180ea", "\u1680x\u1680\u1680", "\u2007\u202f1", "x \u2003 y",
    "   a", "   1", "   !", "\t a", "\t 1", " \ta", "a   1", "a   !", "a \t\n\t b\t", "  \u0301a",
    "! \n!", "!\n!", "!\r\n\n\r!", "! \r\n", "!\u2028", "!\u0085", "!\u00a0\n", "?!\n ?!", " !\n\n a",
]

CONTRACTIONS = [
    "it's", "it'S", "IT'S", "'s", "'S", " 's", "''s", "'s's", "'\u017f", "a'\u017fb", "'\u212a",
    "can't", "CAN'T", "'t'T", "they're", "THEY'RE", "they'Re", "they'rE", "'r", "'re", "'Re", "'rE",
    "we've", "WE'VE", "'v", "'vE", "'Ve", "I'm", "I'M", "'m'M", "you'll", "YOU'LL", "'lL", "'Ll", "'l",
    "she'd", "SHE'D", "'d'D", "x'sand", "x'terrible", "x'revere", "x'vet", "x'made", "x'llama",
    "x'dog", "x'lama", "x'rat", "x'van", "1's", "1'st", "!'s", "'\u2019s", "it\u2019s", "it\u02bcs",
    "'\u0301s", "'s\u0301", "'t\u0307x", "'re\u0301", "'l\u0301l", "'ll\u0323", "' s", "'\ns", "'\u00a0s",
    "o'clock", "rock'n'roll", "'twas", "'em", "d'l'eau", "\u00e9's \u96ea's", "'\u0455", "'\u0405",
    "'\uff53", "'\u1e9e", "'\ufb06", "'1", "'!'", "'''", "'ss'tt'mm'dd",
]

DIGITS = [
    "0", "12", "123456789012345", "1,000.50", "1e-5", "0x1F", "v2.0.1", "a1b2", "1a 2b", " 1  2   3",
    "\u0661\u0662\u0663", "\u0967\u0968", "\u09e7\u09e8", "\u0e51\u0e52", "\u1041", "\uff11\uff12",
    "\U0001d7ce\U0001d7d8\U0001d7e2", "\U0001e950", "\U00011066", "\U000104a0", "\u0660a\u06f0",
    "\u2160\u2161\u217f", "\u00b9\u00b2\u00b3", "x\u00b2+y\u00b2", "\u00bd\u00bc", "\u2460\u24ff",
    "\u3007\u3021", "\u4e00\u4e8c", "\u1369\u1372", "\U00010107\U0001f101", "\u0bf0\u0d70",
    "1\u03012", "1\u200d2", "1\u00a02", "-1 +1 \u22121", "1\n2\r\n3", "\u0f33\u0f2a", "50% \u2030",
]

SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|image_pad|>",
    "a<|im_start|>b", "a <|im_start|> b", "<|im_start|><|im_start|>", "<|im_end|>\n", "\n<|im_end|>",
    "<|im_start", "<|im_start|", "|im_start|>", "im_start|>", "<|im_start|>>", "<<|im_start|>",
    "<|<|im_start|>", "<|im_<|im_end|>start|>", "<|IM_START|>", "<|im_Start|>", "<| im_start |>",
    "<|im_start |>", "<|im\u0301_start|>", "<|im_start|>\u0301", "e<|im_end|>\u0301", "<\uff5cim_start\uff5c>",
    "\u1100<|im_end|>\u1161", "<|im_\u200bstart|>", "<|im_star\u0074|>", "<|im_end|>'s", "it<|im_end|>'s",
    "<think></think>", "< think>", "<think", "<Think>", "<think\n>", "<thinking>", "</ think>",
    "<tool_call>{\"a\": 1}</tool_call>", "<tool_response>x</tool_response", "<|fim_prefix|>a<|fim_suffix|>",
    "<|endoftext|>" * 5, "<|quad_start|><|quad_end|><|box_end|>", "<|vision_start|><|video_pad|>",
    "  <|im_end|>  ", " <|im_end|>\r\n\r\n<|im_start|> ", "1<|im_end|>2", "<|extra_0|> <s> </s> [CLS] <unk>",
    "&lt;|im_start|&gt;", "<|im_start|>system\nYou are\n<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n",
    "<|file_sep|><|repo_name|>x", "<||>", "<|>", "|>", "<|", "<", ">", "<<>>", "\u0000<|im_end|>\u0000",
]

# Neighbours of what is invalid as UTF-8: the first and last code points of each length, around the
# surrogates, and characters whose bytes look like other encodings.
EDGES = [
    "\x7f\u0080", "\u07ff\u0800", "\uffff\U00010000", "\U0010ffff", "\ud7ff\ue000", "\ufffd\ufffe\uffff",
    "\u00c3\u00a9", "\u00c0\u0080", "\u00ff\u00fe", "\u00ed\u00a0\u0080", "\u00ef\u00bb\u00bf", "\ufeff",
    "\u0000", "\u0000\u0000\u0000", "a\u0000b", "\u0000 \u0000\n", "a\u0000's", "\u0000'\u0000s", "\u0080\u0081",
    "\ue000\uf8ff", "\U000f0000a\U0010fffd", "\U000e0001\U000e0041", "\U0001fffe\U0001ffff", "\ufdd0\ufdef",
    "\u0378\u0379a\u0378", " \u0378", "\ufff9x\ufffay\ufffb", "\ufffc", "\x1b[31mred\x1b[0m", "\x08\x08",
    "\\u0041 \\x00 %00 &#0;", "\u01f0\u030c", "\u2060\u2061\u2062", "\u00ad soft\u00adhyphen", "\u034f",
]

MIXED = [
    "caf\u00e9 \u2014 \u201cna\u00efve\u201d \u2026", "C++20 && Rust!? a->b::c", "https://a.b/c?d=e&f=%20#g",
    "me@example.com, #tag @user $5.00", "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\uff01", "foo_bar __x__ _1_ 1_000",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u10d2\u10d0\u10db\u10d0 \u1c92\u1c90", "\u13a0\u13b9 \uab70", "\u1200\u1208 \u1361", "\u0f56\u0f7c\u0f51\u0f0b",
    "\U00012000\U00013000\U00017000", "\U0001d54f\U0001d550 \U0001d4d0\U0001d4d1", "\u2c00\u2c30 \ua640",
    "stra\u00dfe STRASSE \u1e9e", "\u0130stanbul \u0131", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u01c5ep \u01c8",
    "(((a)))[[b]]{{c}}", "----====~~~~", "//////\n\n\n", "a,b;c:d.e!f?g", "...a ...1 ...\n", "!a !1 ! a", "$a$1$ $",
    "\"'`\u00b4\u2018", "_a_ -b- *c*", "\ta = {\n\t\t1,\n\t}\n", "    def f(x):\n        return x\n",
    "a photo of a cat, 8k, (masterpiece:1.2), [blurry]", "\u00bfqu\u00e9? \u00a1s\u00ed!", "\u30ab\u309a \uff76\uff9f",
    "the layers of the glass, the light on the water", "THE QUICK brown FoX",
]


def long_words():
    return ["e" * 1500, "the" * 400, "\u96ea" * 300, "1" * 300, "!" * 400, "\n" * 300, " " * 800 + "x",
            "a\u0301" * 200, "a" + "\u0301" * 200, "\U0001f353" * 120, "a b" * 200, "'s" * 200,
            "<|im_end|>" * 60, "\r\n" * 200, "\u3000" * 200 + "a", "\u1100\u1161\u11a8" * 80]


def from_categories():
    for points in CATEGORIES.values():
        word = "".join(map(chr, points))
        yield word
        yield " ".join(word)
        yield "a" + "a".join(word) + "1"
        yield "".join(f"{c} {c}\n" for c in word[:6])
        yield "".join(f"'{c}!{c}7{c}" for c in word[:6])


def shuffled(count):
    """Texts of characters of all categories, by a linear congruential generator."""
    pool = "".join(chr(p) for points in CATEGORIES.values() for p in points)
    pool += "  \n\r\t'aest19.,<>|" * 6 + "\u0301\u0323\u0308"
    state = 20260701
    for _ in range(count):
        text = ""
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        for _ in range(8 + (state >> 40) % 32):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text += pool[(state >> 33) % len(pool)]
        yield text


def texts():
    every = [MARKS, HANGUL, EMOJI, RTL, SPACES, CONTRACTIONS, DIGITS, SPECIAL, EDGES, MIXED,
             long_words(), from_categories(), shuffled(60)]
    return list(dict.fromkeys(text for group in every for text in group))


def check_categories():
    """Where this Python knows a character, it must be of the category that it stands for."""
    for name, points in CATEGORIES.items():
        for point in points:
            known = unicodedata.category(chr(point))
            assert known in (name, "Cn"), f"U+{point:04X} is {known}, not {name}"


def main():
    check_categories()
    tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "klein", "tokenizer", "tokenizer.json"))
    cases = [[t, tokenizer.encode(t, add_special_tokens=False).ids] for t in texts()]
    path = os.path.join(FOLDER, "tokenizer_nasty.json")
    with open(path, "w", encoding="utf-8") as f:
        # A case a line, so that a change of one shows as one.
        lines = (json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
        f.write("[" + ",\n".join(lines) + "]\n")
    print(f"{len(cases)} texts, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
