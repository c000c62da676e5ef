"""Shows that tools/check_includes finds what it is there to find: usage: ... CHECK_INCLUDES"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = sys.argv.pop(1)
GOOD = {
    "include/parfait/error.h": "#ifndef PARFAIT_ERROR_H_\n#define PARFAIT_ERROR_H_\n#include <string>\n#endif\n",
    "src/base/bytes.h": "#ifndef PARFAIT_BASE_BYTES_H_\n#define PARFAIT_BASE_BYTES_H_\n#endif\n",
    "src/formats/f/layout.h": "#ifndef PARFAIT_FORMATS_F_LAYOUT_H_\n#define PARFAIT_FORMATS_F_LAYOUT_H_\n"
    '#include "base/bytes.h"\n#endif\n',
    "src/formats/f/f.cc": '#include "formats/f/layout.h"\n#include "parfait/error.h"\n',
    "src/kernels/k.cc": '#include "formats/f/layout.h"\n',
    "cli/main.cc": '#include "parfait/error.h"\n',
}


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
        return done.returncode, done.stdout


class CheckIncludes(unittest.TestCase):
    def test_good(self):
        self.assertEqual(run(GOOD), (0, ""))

    def test_bad(self):
        kernel = {"src/kernels/k.h": "#ifndef PARFAIT_KERNELS_K_H_\n#define PARFAIT_KERNELS_K_H_\n#endif\n"}
        for name, text, part in (
            ("src/formats/f/f.cc", '#include "kernels/k.h"\n', "may not be included by src/formats"),
            ("src/base/b.cc", '#include "formats/f/layout.h"\n', "may not be included by src/base"),
            ("src/kernels/k.cc", '#include "formats/f/f.cc"\n', "may not be included by src/kernels"),
            ("src/formats/f/f.cc", '#include "../f/layout.h"\n', "is relative"),
            ("src/formats/f/f.cc", '#include "formats/absent.h"\n', "does not exist"),
            ("src/base/b.cc", "#include <parfait/error.h>\n", "is written with"),
            ("src/attic/m.cc", '#include "base/bytes.h"\n', "says nothing"),
            ("cli/main.cc", '#include "base/bytes.h"\n', "neither public"),
            ("include/parfait/x.h", '#include "base/bytes.h"\n', "not a public header"),
            ("include/parfait/x.h", "#include <fmt/format.h>\n", "not of the C++ standard library"),
            ("src/formats/f/layout.h", '#include "formats/f/g.h"\n', "is not of base/"),
            ("src/base/bytes.h", "#pragma once\n", "include guard"),
        ):
            with self.subTest(name=name, text=text):
                status, out = run({**GOOD, **kernel, name: text})
                self.assertEqual(status, 1)
                self.assertIn(part, out)


unittest.main()
