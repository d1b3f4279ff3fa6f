"""Readers for files that others made: whatever the bytes are, every problem is one `UsageError`."""
