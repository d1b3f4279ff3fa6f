r"""SuperGLUE: fine-tuning on questions with a few answers, and the metrics of the tasks.

python -m longmem_jax.main --config=configs/superglue.py:task=RTE,from=RUN --config.data.path=SUPERGLUE \
    --config.data.tokenizer.path=TOKENIZER --workdir=DIR
`SUPERGLUE` holds the folders of the unpacked original files; `:task=` is BoolQ, CB, COPA, MultiRC, RTE,
WiC or WSC. A model that was trained on text, `RUN`, learns the word of the right answer after `Answer:`;
its output layer is the classifier. A passage of any length is read through the memory, in segments of
128. Training, and `--mode=evaluate --split=validation`, end with accuracy (CB: and macro F1; MultiRC: F1
of all answers and exact match of questions), with the most frequent class as the floor. `:memory=` is
any memory; `:path=FOLDER` puts it into a pretrained decoder, whose tokenizer is used, `memory=none`
none; `:segment=64` is for a host with short texts. `:tiny` is for two cores: of the `path` of a small
host, or without it a small model trained on the questions alone, no more than a check. Classifiers on
encoders such as BERT: `bert_superglue.py`.

Batch, rate and length are those of the BabyLM 2023 pipeline (AdamW, 5e-5, linear decay, batches of 64,
segments as long as its longest text, 128), which cuts longer texts; ours are read to their ends.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given, use
from longmem_jax.config.variants import one_of, variant, whole_number
from longmem_jax.errors import UsageError
from longmem_jax.hosts import grafting


def get_config(arg=''):
    config = base()

    size(config, layers=12, width=768, heads=12, feed_forward=3072)
    config.model.vocab_size = 50_264  # 50,257 of GPT-2, and 7 more for the mesh
    config.model.dropout = 0.1
    config.model.dtype = 'bfloat16'
    config.data.source = 'superglue'
    config.data.task = dict(name='BoolQ')
    config.data.tokenizer.kind = 'bpe'
    config.data.tokenizer.size = 32_000  # if no file is given, it is learned from the questions
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 5e-5
    config.optimizer.weight_decay = 0.01
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 1000
    config.train.num_lanes = 64
    config.train.segment_length = 128
    config.train.segments_per_step = 4  # so that an answer has a gradient to its passage
    config.train.log_every = 20
    config.train.evaluate_every = 200
    config.evaluate.num_lanes = 64
    config.generate.sample_length = 0
    memories = dict(transformer_xl=given(memory_length=512))
    host: dict[str, Any] = dict(source='')

    def tiny(config):
        """2 layers of 64, a minute or two on two cores."""
        size(config, layers=2, width=64, heads=2, feed_forward=128)
        two_cores(config, steps=150, lanes=16, segment=64)
        config.model.vocab_size = 1024
        config.data.tokenizer.size = 1000
        config.optimizer.weight_decay = 0.0
        memories['transformer_xl'].fields.update(memory_length=256)
        config.evaluate.num_lanes = 32

    def task(config, name):
        """One of the tasks."""
        from longmem_jax.hosts.data.superglue import TASKS

        config.data.task.name = one_of('task', name, TASKS)

    def start(config, workdir):
        """The run that the parameters come from."""
        config.train.start_from = workdir

    def path(config, value):
        if config.train.start_from:
            raise UsageError('from=RUN and path=FOLDER: the parameters come from one of them.')
        host.update(source=value)

    def segment(config, value):
        config.train.segment_length = whole_number('segment', value)

    def put(config, name, changes, **scale):
        if not host['source']:
            if name == 'none':
                raise UsageError('memory=none: needs the host of path=FOLDER.')
            use(config, name, changes, **scale)
            return
        dropout = config.model.dropout
        grafting.use_host(config, **host)
        config.model.dropout = dropout
        if name != 'none':
            grafting.graft(config, name, changes=changes, **scale)

    begins: dict[str, Any] = {'from': start}
    return variant(
        config,
        arg,
        memory='transformer_xl',
        memories=memories,
        put=put,
        others=('none',),
        tiny=tiny,
        task=task,
        **begins,
        path=path,
        segment=segment,
    )
