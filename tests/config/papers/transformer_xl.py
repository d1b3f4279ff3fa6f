"""Dai et al. (2019), Sec. 4.1 and the released scripts run_enwik8_base.sh and run_wt103_large.sh."""

VALUES = {
    'enwik8': {
        'parameters': (40e6, 42e6),
    },
    'wikitext103': {
        'parameters': (150e6, 153e6),
    },
}
OURS = {}
