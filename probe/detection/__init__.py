"""Detection and instance masks from stored patch tokens: torchvision's Mask R-CNN, which sees tokens instead of images."""
