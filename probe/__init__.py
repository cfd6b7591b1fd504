"""Stage two: feature sets to trained heads. Imports neither timm nor `extract`."""

import store  # noqa: F401, first of all: it says how threads of torch wait
