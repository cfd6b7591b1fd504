"""Stage one: images to feature sets. Needs timm; never imports `probe`."""
