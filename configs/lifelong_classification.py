r"""Five text classification sets, one after another, read once: AG News, Yelp, Amazon, DBpedia, Yahoo.

python -m longmem_jax.main --config=configs/lifelong_classification.py:path=BERT,method=oml_er,order=i \
    --config.data.path=FOLDER --workdir=DIR
`BERT` is the folder of a BERT or its name on the hub, FOLDER has a folder for each set with the original
`train.csv` and `test.csv` (Zhang et al., 2015). `method=` is sequential, replay, agem, online_ewc, mbpa,
mbpa_plus, mbpa_random, meta_mbpa, oml_er, anml_er or maml_er; `order=` one of the four published orders,
i to iv. Bounds: `method=sequential,stream=joint` (all tasks shuffled together, MTL) and `stream=yelp`
(one task by itself). 115,000 rows of each set are trained on, 7,600 tested, 33 classes in all; which
task a row is from is never seen. `length=128` is the tokens of a row. `:tiny` is for two cores: 3,000
rows and 450 of each, more frequent replays (`_lifelong.small`), and a small encoder, best one of
`longmem_jax.lifelong.pretrain_encoder`.

Rows of a step and tokens of a row are those of each method's source: 16 and 448 for replay, A-GEM and
the episode learners (ANML-ER: 300), 32 and 128 for the others. `learning_rate` 3e-5 is that of the
episode learners, and as recalled that of MbPA++.

Not the paper's: `dtype` bfloat16. The head reads BERT's pooled vector for every method, as in released
code; MbPA++ as printed reads the vector of the first token itself. Online EWC has no published settings
for this stream: `every`, `gamma` and `penalty` of `config.lifelong.online_ewc` are ours.
"""

from longmem_jax.configs._lifelong import lifelong

EPISODES = {'oml_er': (16, 448), 'maml_er': (16, 448), 'anml_er': (16, 300)}
SPARSE = {'replay': (16, 448), 'agem': (16, 448)}


def get_config(arg=''):
    data = dict(rows=3000, test_rows=450, max_length=64)
    return lifelong(
        arg, 'classification', batch=32, by_method=EPISODES | SPARSE, tiny_data=data,
    )  # fmt: skip
