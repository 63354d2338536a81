"""List the licence of every installed package, as its metadata states it.

    python tools/dev/licences.py [--markdown]

The exit status is 1 if a licence forbids commercial use. NVIDIA's libraries in a CUDA build of
torch are proprietary, but they are free of charge, even in products. A wheel may contain libraries
with their own licences, so the libraries of FFmpeg in PyAV's wheel are printed too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from collections.abc import Sequence

import av
from av._core import library_meta

_FORBIDDING = re.compile(r"non.?commercial|\bNC\b|research only", re.IGNORECASE)


def licence(package: importlib.metadata.Distribution) -> str:
    """Return a package's SPDX expression, or its classifiers, or the first line of its field."""
    fields = package.metadata
    named = [
        text.rpartition(" :: ")[2]
        for text in fields.get_all("Classifier") or ()
        if text.startswith("License :: ")
    ]
    lines = (fields.get("License") or "").strip().splitlines()
    return fields.get("License-Expression") or ", ".join(named) or (lines[0] if lines else "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    form = "| {} | {} | {} |" if parser.parse_args(argv).markdown else "{:<28} {:<12} {}"
    packages = {p.metadata["Name"].lower(): p for p in importlib.metadata.distributions()}
    wrong = []
    for name, package in sorted(packages.items()):
        text = licence(package)
        print(form.format(name, package.version, text or "not stated"))
        if _FORBIDDING.search(text):
            wrong.append(f"{name}: {text}")
    print(
        form.format("FFmpeg in PyAV", av.ffmpeg_version_info, library_meta["libavcodec"]["license"])
    )
    if wrong:
        print("licences: no commercial use: " + "; ".join(wrong), file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
