"""The papers' tables, one file per paper: what `papers_test.py` holds the configs to.

A file has
  VALUES: {config argument: {path in the config: the paper's value}}, such as
    {'enwik8': {'model.num_layers': 12}, 'enwik8:memory=local': {...}}. The path 'parameters' takes
    (least, most): the published number of parameters, in which ours must lie.
  OURS: {config: {path: our value}} for what differs from the paper, or what the paper does not say.
    Each path is named in the config's docstring, in the paragraph 'Not the paper's:', with the reason.
"""
