"""BABILong (Kuratov et al., 2024): facts of bAbI (Weston et al., 2015) among sentences of novels."""
