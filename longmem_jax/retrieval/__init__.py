"""What a trained model can look up in addition to its memories: datastores, a cache, SPALM."""
