"""What dvc.yaml puts into commands, which a shell reads.

    python -P -m pipelines.parameters.commands

is the first command of each stage whose next one has anything of params.yaml in it: if this refuses, DVC does not start that.
"""

import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from pipelines.parameters.params import read_params, shown, values_at
from store.errors import BeyondClsError

# In single quotes in dvc.yaml; all else there is a name, which `read_params` has checked.
QUOTED = (
    *("data", "dense.data", "composed.*.n_images", "composed.*.seed", "block_studies.*.stored"),
    *("composed_dense.*.train", "composed_dense.*.test", "composed_dense.*.seed"),
    *("correspondence.*.pairs", "retrieval.*.relevant", "tracking.*.masks", "depth.*.maps", "depth.*.test_maps"),
)


def check_commands(params: Mapping[str, Any]) -> None:
    """Refuse values that a shell would read as more than a value.

    Raises:
        BeyondClsError: there is one.
    """
    for place in QUOTED:
        for where, value in values_at(params, place):
            is_harmless = isinstance(value, str | int | float | date | None) and not re.search(r"[\x00-\x1f\x7f]", str(value))
            if not is_harmless or "'" in str(value):
                raise BeyondClsError(
                    f"{where} in the parameter file is {shown(value)}, which a shell would read as more than one value; "
                    "expected one line of text or a number, no quote; write it otherwise, or rename the folder that it names"
                )


if __name__ == "__main__":
    try:
        check_commands(read_params(Path("params.yaml")))
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
