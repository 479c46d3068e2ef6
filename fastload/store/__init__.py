"""The packed dataset on disk: records in LMDB shards, index, names, manifest. Knows nothing of torch."""
