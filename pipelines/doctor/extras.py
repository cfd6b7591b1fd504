"""Which parts of the program are installed here."""

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine
from pipelines.doctor.needed import OURS, extras, is_met, requirements, version

# What cannot be done without an extra.
NEEDED_FOR = {
    "extract": "extract features, and predict from images",
    "probe": "draw the report, localise and detect objects, and use the protocol logistic",
    "exchange": "export and import HDF5",
    "notebook": "have results as tables of pandas or Arrow, and progress bars in notebooks",
    "parquet": "extract from tables of images in Parquet or Arrow",
    "s3": "read and write s3:// addresses",
    "open_clip": "extract with models of OpenCLIP",
    "transformers": "extract with models of Hugging Face",
    "tensorboard": "watch heads train in TensorBoard (probe --log tensorboard)",
    "wandb": "watch heads train in Weights & Biases (probe --log wandb)",
    "ray": "share an extraction in a Ray cluster",
    "dev": "run the pipeline with DVC, and change and test beyondcls",
}


def check(machine: Machine) -> Finding | None:
    """A missing extra is a note: not every machine does everything. A version outside of the requirements is a problem."""
    if version(OURS) is None:
        return None
    complete, lacking, wrong, remedies = [], [], [], []
    for extra in extras():
        needed = requirements(extra)
        missing = [r.name for r in needed if version(r.name) is None]
        unfit = [r for r in needed if version(r.name) is not None and not is_met(r)]
        if missing:
            lacking.append(f"{extra} (no {', '.join(missing)})")
        elif not unfit:
            complete.append(extra)
        wrong += [f"{r.name} is {version(r.name)}, {extra} expects {r.specifier}" for r in unfit]
        if missing or unfit:
            remedies.append(f"to {NEEDED_FOR.get(extra, f'use {extra}')}: pip install '{OURS}[{extra}]'")
    parts = [
        f"complete: {', '.join(complete)}" if complete else "",
        f"not here: {', '.join(lacking)}" if lacking else "",
        *dict.fromkeys(wrong),
    ]
    state = "problem" if wrong else "note" if lacking else "ok"
    return Finding("extras", state, "; ".join(filter(None, parts)), "\n".join(remedies))  # type: ignore[arg-type]
