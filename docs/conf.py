"""How Sphinx builds the documentation: `make docs`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from percent import page  # noqa: E402

project = "beyondcls"
author = "the beyondcls maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "beyondcls"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# The scripts of the gallery as pages.
for script in (ROOT / "docs/gallery").glob("*.py"):
    script.with_suffix(".md").write_text(page(script), encoding="utf-8")

# The reference of the command line is what its help says.
subprocess.run(
    [sys.executable, "-m", "typer", "pipelines.cli", "utils", "docs", "--name", "beyondcls", "--output", "docs/cli.md"],
    cwd=ROOT,
    check=True,
    stdout=subprocess.DEVNULL,
)
