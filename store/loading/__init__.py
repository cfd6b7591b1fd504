"""From a feature set to batches: placement, order, streaming, decoding; rows by id and of two sets in step."""
