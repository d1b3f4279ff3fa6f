"""Sukhbaatar et al. (2021), Expire-Span: Secs. 4 and 5, Table 8 and the released scripts."""

VALUES = {
    'expire_span_enwik8': {
        'parameters': (37.5e6, 38.5e6),
    },
    'expire_span_enwik8:large': {
        'parameters': (207.5e6, 208.5e6),
    },
    'expire_span_enwik8:memory=adaptive_span': {
        'parameters': (38.5e6, 39.5e6),
    },
    'expire_span_wikitext103': {
        'parameters': (135e6, 145e6),
    },
}
OURS = {}
