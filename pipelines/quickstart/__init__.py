"""Pictures composed of a data set's images, so that every pixel and every object is known: stages of the pipeline."""
