"""Limits of size, of what is submitted and not of what a user edits: a file, the core, the product. Exit status 1 above one."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
lines = {file: len(file.read_text().splitlines()) for file in [*ROOT.glob("prm_jax/**/*.py"), *ROOT.glob("*.py")]}
product = sum(lines.values())
core = sum(n for file, n in lines.items() if file.parent == ROOT / "prm_jax")
over = [
    f"{file.relative_to(ROOT)}: {n} lines, at most 400: split it by what it does"
    for file, n in lines.items()
    if n > 400
]
if core >= 2_800:
    over.append(f"the core, flat in prm_jax/: {core} lines, fewer than 2,800: move what is no core into a folder")
if product > 23_660:
    over.append(f"the product: {product} lines, at most 23,660: delete what the change makes needless")
print(f"sizes: core {core}, product {product} lines")
sys.exit("\n".join(over) or None)
