"""One run over several machines: which cells each shard of it takes."""
