r"""Four tasks of question answering, one after another, read once: SQuAD, QuAC, TriviaQA (two parts).

python -m longmem_jax.main --config=configs/lifelong_qa.py:path=BERT,method=mbpa_plus,order=i \
    --config.data.path=FOLDER --workdir=DIR
`BERT` is the folder of a BERT or its name on the hub, FOLDER has the original json files of the data
sets. `method=` and the bounds are those of `lifelong_classification.py`; `order=` is i to iv. The
answer is a span of the context, scored by the F1 of its tokens by their places, the best over the
answers that are given; an equal word elsewhere does not count, as it does officially. The key of a
row is the encoding of its question. `length=384` is the tokens of context and question. `:tiny` is for
two cores: short contexts, 2,000 rows and 200 of each task, such as `experiments.lifelong.fewrel` makes.

Not the paper's: `num_lanes` 8, the rows of a step, `max_length` 384 and `learning_rate` 3e-5 are as
recalled; `dtype` bfloat16 is ours. The episode learners were not made for questions.
"""

from longmem_jax.configs._lifelong import lifelong


def get_config(arg=''):
    data = dict(rows=2000, test_rows=200, max_length=64, max_question=24)
    return lifelong(arg, 'qa', batch=8, by_method={}, tiny_data=data)
