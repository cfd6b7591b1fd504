"""Writing feature sets: one writer at a time, killed writers are resumed, damaged shards are written again."""
