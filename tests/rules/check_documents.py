"""What the documents repeat of the code is what the code says.

usage: check_documents.py error_codes|example|format_pages ROOT
       check_documents.py matrix ROOT PARFAIT
"""

import difflib
import pathlib
import re
import subprocess
import sys


def compare(expected, found, expected_name, found_name):
    if expected == found:
        return []
    return list(
        difflib.unified_diff(
            found.splitlines(), expected.splitlines(), found_name, expected_name, lineterm=""
        )
    )


def error_codes(root):
    """docs/errors.md has one section for each code of errors.inc, and no others."""
    listed = re.findall(
        r'^PARFAIT_ERROR\(\w+, "([^"]+)"', (root / "include/parfait/errors.inc").read_text(), re.M
    )
    headings = re.findall(r"^### `([^`]+)`$", (root / "docs/errors.md").read_text(), re.M)
    problems = [f"errors.inc has {code} twice" for code in set(listed) if listed.count(code) > 1]
    problems += [f"docs/errors.md has no section `{code}`" for code in listed if code not in headings]
    problems += [f"docs/errors.md explains `{code}`, which is no code" for code in headings if code not in listed]
    problems += [f"docs/errors.md has `{code}` twice" for code in set(headings) if headings.count(code) > 1]
    if not listed:
        problems.append("no code was found in errors.inc")
    return problems


def example(root):
    """The example at the head of parfait.h is examples/inspect/main.cc, byte for byte."""
    lines = (root / "include/parfait/parfait.h").read_text().split("#ifndef", 1)[0].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("//   "))
    code = "".join(line[5:] + "\n" for line in lines[start:])
    return compare(
        code, (root / "examples/inspect/main.cc").read_text(), "include/parfait/parfait.h", "examples/inspect/main.cc"
    )


def format_pages(root):
    """Every folder of the format table has its page."""
    folders = re.findall(r"^PARFAIT_FORMAT\(\w+, (\w+)\)", (root / "src/formats/formats.inc").read_text(), re.M)
    return [
        f"docs/formats/{folder}.md does not exist"
        for folder in sorted(set(folders))
        if not (root / f"docs/formats/{folder}.md").is_file()
    ]


def matrix(root, program):
    """The README's table of formats is what the program prints."""
    readme = root / "README.md"
    if not readme.is_file():
        print("there is no README.md yet")
        return []
    begin, end = "<!-- formats:begin -->\n", "<!-- formats:end -->"
    text = readme.read_text()
    if text.count(begin) != 1 or text.count(end) != 1:
        return [f"README.md lacks the markers {begin.strip()} and {end}"]
    table = text.split(begin)[1].split(end)[0]
    printed = subprocess.run([program, "formats", "--markdown"], capture_output=True, text=True, check=True).stdout
    return compare(printed, table, "parfait formats --markdown", "README.md")


checks = {f.__name__: f for f in (error_codes, example, format_pages, matrix)}
problems = checks[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
print("\n".join(problems))
sys.exit(1 if problems else 0)
