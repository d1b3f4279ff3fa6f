"""The promises of a memory as tests, for memories of this package and of others; see `conformance`."""
