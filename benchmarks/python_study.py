"""The study of benchmarks.peers by this program's Python functions, in one process.

    python -m benchmarks.python_study FOLDER STUDY MORE_SEEDS

STUDY is JSON. Heads train from the study's seeds, and again from MORE_SEEDS, for what a head-run adds. The last line is JSON:
`probing`, what each training took, and `top1` by head.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import beyondcls
from benchmarks.study import SPLITS, Study
from benchmarks.took import Took


def main() -> None:
    folder, study, more_seeds = Path(sys.argv[1]), Study.from_json(sys.argv[2]), range(int(sys.argv[3]))
    encoder = beyondcls.load_encoder(study.encoder, random_seed=None if study.is_trained else 0)
    images = [beyondcls.open_images(f"{study.images}/{split}") for split in SPLITS]
    stores = [beyondcls.extract(encoder, one, folder / "features" / s) for one, s in zip(images, SPLITS, strict=True)]
    training, test = (store for store in stores if store is not None)
    probing, measures = [], {}
    for seeds, name in ((study.seeds, "probes"), (tuple(more_seeds), "more")):
        plans = {head: beyondcls.HeadPlan(beyondcls.HeadSpec(head), study.recipe, seeds) for head in study.heads}
        took = Took()
        with took.whole():
            measures[name] = beyondcls.probe(training, test, folder / name, plans)
        probing.append(took)
    top1 = {head: of_head["top1"]["values"] for head, of_head in measures["probes"].items()}
    print(json.dumps({"probing": [asdict(took) for took in probing], "top1": top1}))


if __name__ == "__main__":
    main()
