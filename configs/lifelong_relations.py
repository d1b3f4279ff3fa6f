r"""Ten clusters of relations, one after another, read once: lifelong FewRel.

python -m longmem_jax.main --config=configs/lifelong_relations.py:path=BERT,method=oml_er \
    --config.data.path=FOLDER --workdir=DIR
`BERT` is the folder of a BERT or its name on the hub, FOLDER has `relation_name.txt`,
`training_data.txt` and `val_data.txt`. `method=` and the bounds are those of
`lifelong_classification.py`. Clusters come in a random order, that of `config.data.seed`; they are in
the file `config.data.task.clusters`, or made by k-means of the names' mean vectors, of GloVe
(`config.data.task.vectors`) or else of the encoder's tokens. A sentence is read with each of its
candidate relations. `:tiny` is for two cores.

4 rows in a step, 64 tokens and a replay every 1,600 rows are those of OML-ER, as is the rate.

Not the paper's: `dtype` bfloat16; for methods of other papers also `num_lanes`, the rows of a step.
"""

from longmem_jax.configs._lifelong import lifelong

EVERY = {
    'oml_er': 'replay_every', 'anml_er': 'replay_every', 'maml_er': 'replay_every',
    'replay': 'replay_every', 'agem': 'every',
}  # fmt: skip


def get_config(arg=''):
    data = dict(rows=4000, test_rows=800, max_length=64)
    config = lifelong(arg, 'relations', batch=4, by_method={}, tiny_data=data)
    name = config.lifelong.method
    if name in EVERY and 'tiny' not in (arg or '').split(','):
        config.lifelong[name][EVERY[name]] = 1600
    return config
