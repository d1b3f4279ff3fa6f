r"""SuperGLUE by a classifier on BERT, with memory tokens (MemTransformer: Burtsev et al., 2020).

python -m longmem_jax.main --config=configs/bert_superglue.py:path=FOLDER,task=RTE,mem_tokens=10 \
    --config.data.path=SUPERGLUE --workdir=DIR

`FOLDER` is a Hugging Face BERT, or its name on the hub; its tokenizer is used. `SUPERGLUE` holds the
folders of the unpacked original files. `task=` is BoolQ, CB, COPA, MultiRC, RTE, WiC or WSC.

Ten learned vectors are put before every text, [mem] ... [CLS] FIRST [SEP] SECOND [SEP]. All layers read
and write them; `mem_tokens=0` is plain BERT. The vector of [CLS] goes through BERT's pooler and a linear
map to the classes. COPA scores its choices one by one, MultiRC its answers, and WSC marks noun and
pronoun in the text. Texts longer than `length=512` tokens are cut, the longer of two first.

Training, and `--mode=evaluate --split=validation`, end with accuracy (CB: also macro F1; MultiRC: F1 of
all answers and exact match of questions), with the most frequent class as the floor. `:tiny` is for two
cores. Without `path` it trains a small encoder, which learns its WordPiece vocabulary and everything
else from the task; this is only a check. The full size without `path` is BERT base, untrained.

Not the paper's: the source gives the encoder, BERT base, and no more; and it reports GLUE, whose RTE is
also here. `num_tokens` 10 is that of its translation models. `optimizer.name` AdamW, `learning_rate`,
`train.num_lanes` (the batch), `dropout` (0.1 as `residual_dropout`, `embedding_dropout`,
`attention_dropout` and `model.classifier.dropout`; none inside of feed-forward layers), `weight_decay`,
`schedule`, `warmup_steps` (a tenth of the steps) and `max_length` are the usual ones of BERT fine-tuning
(Devlin et al., 2019), as recalled; `num_steps` is three epochs of the original training set, at least
500. `clip_norm` 1 and `dtype` bfloat16 are ours.
"""

from typing import Any

from longmem_jax.config.base import base, two_cores
from longmem_jax.config.variants import one_of, variant, whole_number
from longmem_jax.errors import UsageError
from longmem_jax.hosts import classifiers

SMALL = classifiers.BERT_BASE | dict(
    vocab_size=2000, max_position_embeddings=128, hidden_size=64, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=128, initializer_range=0.125,
)  # fmt: skip
# Steps of three epochs in batches of 32, from 500 on.
STEPS = dict(BoolQ=900, MultiRC=2600, WiC=550)


def get_config(arg=''):
    config = base()
    host: dict[str, Any] = dict(source='', shape=classifiers.BERT_BASE)
    learned: dict[str, Any] = dict(num_tokens=10, dropout=0.1)

    config.data.source = 'superglue_pairs'
    config.data.task = dict(name='RTE', max_length=512)
    config.data.tokenizer = dict(kind='wordpiece', path='', size=30_522)  # of the folder `path`
    config.model.dtype = 'bfloat16'
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 2e-5
    config.optimizer.weight_decay = 0.01
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.train.num_lanes = 32
    config.train.log_every = 20
    config.train.evaluate_every = 100
    config.evaluate.num_lanes = 32
    config.generate.sample_length = 0

    def task(config, name):
        """One of the tasks."""
        from longmem_jax.hosts.data.superglue import TASKS

        config.data.task.name = one_of('task', name, TASKS)

    def length(config, value):
        """Tokens of a pair, its marks included."""
        config.data.task.max_length = whole_number('length', value)

    def steps(config):
        config.train.num_steps = STEPS.get(config.data.task.name, 500)
        config.optimizer.warmup_steps = config.train.num_steps // 10

    def tiny(config):
        """A minute or two on two cores; without `path`, 2 layers of 64."""
        two_cores(config, steps=150, lanes=16, segment=128)
        config.optimizer.name = 'adamw'
        config.data.task.max_length = min(config.data.task.max_length, 128)
        config.data.tokenizer.size = SMALL['vocab_size']
        host.update(shape=SMALL)
        learned.update(dropout=0.0)

    def path(config, value):
        host.update(source=value)

    def mem_tokens(config, value):
        """The number of memory tokens; 0 = none."""
        if not value.isdigit():
            raise UsageError(
                f'mem_tokens={value}: must be an integer from 0, such as mem_tokens=10.'
            )
        learned.update(num_tokens=int(value))

    variant(
        config,
        arg,
        memory=None,
        task=task,
        length=length,
        tiny=tiny,
        path=path,
        mem_tokens=mem_tokens,
    )
    if host['shape'] is not SMALL:
        steps(config)
    classifiers.use_encoder(config, **host, **learned)
    return config
