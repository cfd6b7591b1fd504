"""Writing feature sets: one writer at a time, what was killed goes on, what is damaged is written again."""
