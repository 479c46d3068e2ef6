"""The steps of `fastload.repair`: examine each shard, diagnose the dataset, mend it."""
