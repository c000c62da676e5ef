"""Every source is as clang-format leaves it: usage: check_format.py ROOT"""

import pathlib
import shutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
tool = shutil.which("clang-format")
if tool is None:
    sys.exit("clang-format is not installed; tools/setup.sh installs it")
files = [
    str(file)
    for folder in ("include", "src", "cli", "tests", "examples", "bench", "fuzz")
    for suffix in ("*.h", "*.cc")
    for file in sorted((root / folder).rglob(suffix))
]
done = subprocess.run([tool, "--dry-run", "--Werror", "--ferror-limit=1", *files], cwd=root)
if done.returncode:
    sys.exit("`make format` mends this")
