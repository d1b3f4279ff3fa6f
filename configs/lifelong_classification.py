"""Five text classification sets, one after another, read once: AG News, Yelp, Amazon, DBpedia, Yahoo.

python -m longmem_jax.main --config=configs/lifelong_classification.py:path=BERT,method=oml_er,order=i \
    --config.data.path=FOLDER --workdir=DIR
`BERT` is the folder of a BERT or its name on the hub, FOLDER has a folder for each set with the original
`train.csv` and `test.csv` (Zhang et al., 2015). `method=` is sequential, replay, agem, online_ewc, mbpa,
mbpa_plus, mbpa_random, meta_mbpa, oml_er, anml_er or maml_er; `order=` one of the four published orders,
i to iv. Bounds: `method=sequential,stream=joint` (all tasks shuffled together, MTL) and `stream=yelp`
(one task by itself). 115,000 rows of each set are trained on, 7,600 tested, 33 classes in all; which
task a row is from is never seen. `length=128` is the tokens of a row. `:tiny` is for two cores: 3,000
rows and 450 of each, and a small encoder, best one of `longmem_jax.commands.pretrain_encoder`.

Rows of a step and tokens of a row are those of each method's source: 16 and 448 for replay, A-GEM and
the episode learners (ANML-ER: 300), 32 and 128 for the others. `learning_rate` 3e-5 is that of the
episode learners, and as recalled that of MbPA++.

`tiny` has 15,000 rows where the papers have 575,000. Their replays, 1 % of the rows after every 9,600,
would be 144 rows at 18 places, and do nothing; here a tenth of the rows is replayed, 8 after every 80.
Its episodes have one batch of support, not 5, since every episode is one step of the encoder.

Not the paper's: `dtype` bfloat16. Online EWC has no published settings for this stream: `every`, `gamma`
and `penalty` of `config.lifelong.online_ewc` are ours.
"""

from configs._lifelong import lifelong

EPISODES = {'oml_er': (16, 448), 'maml_er': (16, 448), 'anml_er': (16, 300)}
SPARSE = {'replay': (16, 448), 'agem': (16, 448)}


def small(name):
    """Values of `tiny`."""
    replayed = dict(replay_every=80, replay_rate=0.1)
    if name in EPISODES:
        # A rate for the whole encoder is lower than one for the head alone.
        return replayed | dict(updates=1, inner_rate=0.1 if name == 'oml_er' else 0.01)
    if name == 'meta_mbpa':
        return replayed | dict(num_neighbours=8, train_rate=1e-2, adapt_rate=1e-2)
    if name.startswith('mbpa'):
        return replayed | dict(adapt_rate=1e-2)
    if name == 'replay':
        return replayed
    return dict(agem=dict(every=80), online_ewc=dict(every=800)).get(name, {})


def get_config(arg=''):
    data = dict(rows=3000, validation_rows=0, test_rows=450, max_length=64)
    return lifelong(
        arg, 'classification', batch=32, by_method=EPISODES | SPARSE, tiny_data=data,
        small_method=small,
    )  # fmt: skip
