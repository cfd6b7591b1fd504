"""What `beyondcls predict` says of an image, by what was trained: a probe of images, a head for patches, a detector."""
