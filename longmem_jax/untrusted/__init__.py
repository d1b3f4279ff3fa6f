"""Readers for files that others made: whatever the bytes are, every fault is one `UsageError`."""
