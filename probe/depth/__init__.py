"""Depth and surface normals of pixels from cached patch tokens, by a linear head."""
