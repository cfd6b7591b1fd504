"""Stage two: feature sets to trained heads. Imports neither timm nor `extract`."""
