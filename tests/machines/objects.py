"""Which objects of a DVC cache or remote belong to which outs, from dvc.lock."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Locked:
    """dvc.lock of a repository whose cache holds all objects that it names."""

    stages: dict[str, Any]
    cache: Path

    @classmethod
    def read(cls, repo: Path) -> "Locked":
        return cls(yaml.load((repo / "dvc.lock").read_text(), yaml.CSafeLoader)["stages"], repo / ".dvc/cache/files/md5")

    def deps(self, stage: str, below: str) -> dict[str, str]:
        """MD5 by path of a stage's dependencies below a folder."""
        return {d["path"]: d["md5"] for d in self.stages[stage]["deps"] if d["path"].startswith(f"{below}/")}

    def outs(self, stage: str) -> dict[str, str]:
        """MD5 by path of what a stage makes."""
        return {out["path"]: out["md5"] for out in self.stages[stage]["outs"]}

    def objects(self, outs: dict[str, str]) -> dict[str, int]:
        """Bytes of each object of these outs, by its MD5: files, and the lists in place of folders."""
        nbytes = {}
        for md5 in outs.values():
            listed = self.file(md5)
            if listed.exists():
                nbytes[md5] = listed.stat().st_size
                if md5.endswith(".dir"):
                    nbytes |= {(m := e["md5"]): self.file(m).stat().st_size for e in json.loads(listed.read_bytes())}
        return nbytes

    def file(self, md5: str) -> Path:
        return self.cache / md5[:2] / md5[2:]


def kind_of(path: str) -> str:
    """`features/NAME/patch` is of kind `patch`."""
    return path.split("/")[2] if path.startswith("features/") else path.split("/")[0]
