"""What a feature set is on disk: its description, arrays, shards and digests; reading and checking it."""
