"""Extraction by Ray whose nodes die and join: the bytes are those of one process.

    python -m benchmarks.nodes [--kills 20] [--seed 0]

Starts a cluster on this machine: a head, and two nodes of one core. Extracts the quickstart's test images (1,000, in shards of
32) with its random ViT, again and again, while one node after the other dies at a random moment and another joins, until
`--kills` have died. Then compares the sets with that of one process. The last line is JSON: the share of files that are
equal, which must be 1. Needs the `ray` extra.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.engines import command
from benchmarks.kills import files
from benchmarks.timing import ROOT

HEAD = {"num_cpus": 0, "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from ray.cluster_utils import Cluster

    chance, folder = random.Random(given.seed), Path(tempfile.mkdtemp(prefix="beyondcls-nodes-"))
    killed = 0
    equal: list[bool] = []
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        run(folder / "one", "--on", "here").wait()
        one = files(folder / "one")
        while killed < given.kills:
            out = folder / f"set{len(equal)}"
            extracting = run(out, "--on", "ray", "--tasks", "2", "--address", cluster.address)
            while extracting.poll() is None and killed < given.kills:
                time.sleep(chance.uniform(2, 20))
                if extracting.poll() is None:
                    replace(cluster, nodes, chance)
                    killed += 1
                    print(f"{killed} killed", flush=True)
            if extracting.wait():
                raise RuntimeError(f"it ended with status {extracting.returncode}")
            some = files(out)
            equal += [some.get(name) == content for name, content in one.items()] + [len(some) == len(one)]
            print(f"{out.name}: {'equal' if all(equal) else 'differs'}", flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder)
    print(json.dumps({"kills": killed, "equal_files": sum(equal) / len(equal)}))


def run(out: Path, *engine: str) -> "subprocess.Popen[bytes]":
    arguments = command("quickstart-random", out, *engine)
    arguments[arguments.index("--shard-rows") + 1] = "32"
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=sys.stderr)


def replace(cluster: Any, nodes: list[Any], chance: random.Random) -> None:
    """Kill a node, and add another before or after."""
    first = chance.random() < 0.5
    if first:
        nodes.append(cluster.add_node(num_cpus=1))
    cluster.remove_node(nodes.pop(chance.randrange(2)), allow_graceful=False)
    if not first:
        nodes.append(cluster.add_node(num_cpus=1))


if __name__ == "__main__":
    main()
