"""The library never prints, aborts or exits: usage: check_symbols.py libparfait.a NM BUILD_TYPE

Looks at what the archive's objects refer to and do not define. std::terminate is left to the runtime,
where std::thread's destructor mentions it. In a Debug build the headers of simdjson assert.
"""

import subprocess
import sys

FORBIDDEN = {
    # printing
    "printf", "fprintf", "vprintf", "vfprintf", "dprintf", "puts", "fputs", "putchar", "fputc", "putc",
    "fwrite", "perror", "syslog", "psignal", "stdout", "stderr", "_ZSt4cout", "_ZSt4cerr", "_ZSt4clog",
    "_ZNSt8ios_base4InitC1Ev", "__printf_chk", "__fprintf_chk", "__vfprintf_chk", "__vprintf_chk",
    # ending the program
    "exit", "_exit", "_Exit", "quick_exit", "abort", "raise", "__assert_fail", "__assert_perror_fail",
    "_ZSt10unexpectedv", "_ZSt21__glibcxx_assert_failPKciS0_S0_",
}  # fmt: skip
ONLY_IN = {"_ZSt9terminatev": {"threads.cc.o", "weights.cc.o", "session.cc.o", "load.cc.o", "model.cc.o", "output_set.cc.o", "part_file.cc.o", "reference.cc.o"}}

archive, nm, build_type = sys.argv[1:]
if build_type == "Debug":
    FORBIDDEN.remove("__assert_fail")
listing = subprocess.run(
    [nm, "--undefined-only", "--format=posix", archive], capture_output=True, text=True, check=True
).stdout
member, seen, bad = "", 0, []
for line in listing.splitlines():
    if line.endswith(":"):
        member = line.rsplit("[", 1)[-1].rstrip("]:")
        continue
    if not line.strip():
        continue
    symbol = line.split()[0].split("@")[0]
    seen += 1
    if symbol in FORBIDDEN or member not in ONLY_IN.get(symbol, {member}):
        bad.append(f"{member} refers to {symbol}")
if seen < 100:
    sys.exit(f"only {seen} symbols were read from {archive}: the listing was not understood")
print("\n".join(bad) if bad else f"{seen} references, none forbidden")
sys.exit(1 if bad else 0)
