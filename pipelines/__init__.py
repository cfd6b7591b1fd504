"""The command line: a thin main for each stage and tool here, and rooms for what they share and for what is no stage.

- `parameters`, `sharing`, `process`, `live`: what users ask for, where feature sets are, the process, probes on live encoders.
- `store`: tools for feature sets. `doctor`: checks of the machine and the project. `report`: the page, its tables and plots.
- `code`: digests of the code, by which `dvc repro` knows what an edit concerns. `quickstart`: pictures composed of its data.
"""

import store as _store  # noqa: F401, first of all: it says how threads of torch wait
