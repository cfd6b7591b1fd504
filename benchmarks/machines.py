"""What a second machine saves: one extracts and pushes, another pulls what its head reads and trains, over a DVC remote.

    python -m benchmarks.machines [--quick] [--remote local|s3|ssh]

The quickstart's images (5,000 for training, 1,000 for testing) and its MAE, on two machines that are clones on this one: the
second has neither images nor encoders nor timm. S3 is moto's server, SSH an sshd, both on loopback: bytes are as with
real machines, seconds exclude a network. The head that reads [cls] and AbMILP are trained as params.yaml says, one
after the other, each after an edit on a machine that has nothing yet. Dependencies on code are left in, as users have them.
`pulled_share_cls`: bytes pulled for [cls] / all bytes of the two feature sets. `seconds_vs_again`: seconds of pulling and
training AbMILP / seconds of extraction and training it where the images are. The last line is JSON.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.remotes import REMOTES, Remote, lacking
from benchmarks.timing import conclude
from tests.machines import project
from tests.machines.machine import Machine, git
from tests.machines.objects import Locked, kind_of

HEADS = {"cls": "cls_heads", "abmilp": "heads"}
EXTRACT = [project.extract_stage(project.MAE, split) for split in project.SPLITS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few images and epochs: about a minute, and no evidence")
    parser.add_argument("--remote", choices=REMOTES, default="local")
    given = parser.parse_args()
    if reason := lacking(given.remote):
        parser.error(f"--remote {given.remote} cannot be served here: {reason}")
    with tempfile.TemporaryDirectory(prefix="beyondcls-machines-") as scratch:
        folder = Path(scratch)
        remote = REMOTES[given.remote](folder / "remote")
        try:
            result = run(folder, remote, given.quick)
        finally:
            remote.close()
    conclude({"remote": given.remote, **result}, not given.quick)


def run(folder: Path, remote: Remote, quick: bool) -> dict[str, float]:
    bare = project.small_origin(folder, ("extract", "probe", "probe-cls")) if quick else project.origin(folder)
    first = project.machine_a(folder / "a", bare)
    remote.add_to(first)
    extraction, _ = timed(first.repro, *EXTRACT, *sorted(project.CODE))
    training, _ = timed(first.repro, "--single-item", project.probe_stage("abmilp"))
    pushing, _ = timed(first.dvc, "push")
    first.commit("Extracted")
    git(first.repo, "push", "-q", "origin", "HEAD:main")
    locked = Locked.read(first.repo)
    features = {path: md5 for stage in EXTRACT for path, md5 in locked.outs(stage).items()}
    whole = sum(locked.objects(features).values())
    print(f"extraction {extraction:.1f} s, training AbMILP {training:.1f} s; pushed {mb(remote.received())} in {pushing:.1f} s")
    pulled, seconds = {}, {}
    for head in HEADS:
        second = project.machine_b(folder / f"b-{head}", bare)
        remote.add_to(second)
        project.edit(second.repo, change_rate(head))
        seconds[head], ran = timed(second.repro, "--pull", "--allow-missing", project.probe_stage(head))
        assert project.without_code(ran) == {project.probe_stage(head)}, ran
        reads = Locked.read(second.repo).deps(project.probe_stage(head), "features")
        kinds = by_kind(second, locked, reads | features)
        pulled[head] = sum(kinds.values())
        shown = ", ".join(f"{kind} {mb(n)}" for kind, n in kinds.items())
        print(f"{head}: pulled {mb(pulled[head])} of {mb(whole)} ({shown}) and trained in {seconds[head]:.1f} s")
    again = extraction + training
    return {
        "extraction_s": round(extraction, 1),
        "training_s": round(training, 1),
        "push_s": round(pushing, 1),
        **{f"{head}_s": round(value, 1) for head, value in seconds.items()},
        **{f"pulled_share_{head}": round(value / whole, 4) for head, value in pulled.items()},
        "seconds_vs_again": round(seconds["abmilp"] / again, 2),
    }


def change_rate(head: str) -> Callable[[dict[str, Any]], object]:
    """An edit of params.yaml after which the head is trained again."""
    return lambda params: params[HEADS[head]][head].update(base_lr=0.05)


def by_kind(machine: Machine, locked: Locked, features: dict[str, str]) -> dict[str, int]:
    """Bytes in the machine's cache of each kind of array; a file shared by several counts for the first."""
    left, kinds = machine.cached(), dict.fromkeys(map(kind_of, features), 0)
    for path, md5 in features.items():
        kinds[kind_of(path)] += sum(left.pop(m, 0) for m in locked.objects({path: md5}))
    return {kind: n for kind, n in kinds.items() if n}


def timed(work: Callable[..., Any], *arguments: str) -> tuple[float, Any]:
    began = time.perf_counter()
    done = work(*arguments)
    return time.perf_counter() - began, done


def mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
