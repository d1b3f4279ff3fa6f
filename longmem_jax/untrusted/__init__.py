"""Readers for files that others made: every fault is one `UsageError`, whatever the bytes are."""
