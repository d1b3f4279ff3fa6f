"""What a trained model can look up beside its memories: datastores, the test document, SPALM."""
