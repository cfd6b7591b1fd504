"""What an encoder was trained by, as far as its name says: the paper's families."""

import re

MASKED, JOINT = "masked image modelling", "joint embedding"

# Words of names, as timm and the authors write them. iBOT does both, and stands where the paper puts it (appendix C.1, v2).
# DINOv2 and DINOv3, which do both too, are in none of its tables and go by neither.
FAMILIES = {
    MASKED: ("mae", "simmim", "maskfeat", "beit", "beitv2", "ijepa", "capi"),
    JOINT: ("dino", "mocov3", "ibot"),
}
OTHER = ("finetuned", "ft", "supervised", "random")  # trained with labels, or not at all


def family(encoder: str) -> str | None:
    """`MASKED`, `JOINT`, or None where the name does not say, says both, or says that labels were used or nothing trained."""
    words = set(re.split(r"[^a-z0-9]+", encoder.lower().replace("moco-v3", "mocov3").replace("i-jepa", "ijepa")))
    found = [name for name, known in FAMILIES.items() if words & set(known)]
    return found[0] if len(found) == 1 and not words & set(OTHER) else None
