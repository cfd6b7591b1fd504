"""Stands in for a stage's command: what it makes is a digest of what it is given. Copied into the project that is edited."""

import argparse
import hashlib
from pathlib import Path

import yaml


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("params", "deps", "outs"):
        parser.add_argument(f"--{name}", nargs="*", default=[])
    given = parser.parse_args()
    digest = hashlib.sha256()
    for name in given.params:
        value = yaml.safe_load(Path("params.yaml").read_text())
        for key in name.split("."):
            value = value[key]
        digest.update(yaml.safe_dump(value).encode())
    for dep in map(Path, given.deps):
        for file in sorted(f for f in (dep, *dep.rglob("*")) if f.is_file()):
            digest.update(file.read_bytes())
    for out in map(Path, given.outs):
        file = out if out.suffix else out / "content"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{out}: {digest.hexdigest()}\n")


if __name__ == "__main__":
    main()
