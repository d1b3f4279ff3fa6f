r"""A pretrained decoder with a memory: fine-tuned, in part or whole.

python -m longmem_jax.main --config=configs/host.py:path=FOLDER,memory=moba --config.data.path=TEXTS \
    --config.data.source=text --workdir=DIR
FOLDER is a Hugging Face model (GPT-2, GPT-Neo, Pythia, Llama, Mistral, Qwen 2 and 3, Gemma 3, OLMo 2
and 3, SmolLM3, Phi 3 and 4, Qwen3-MoE, Qwen3-Next, OLMo-Hybrid), its name on the hub, or a GGUF file
(Llama, Qwen 2 and 3, GPT-2); its tokenizer is used. `memory=NAME` is one of those in
docs/memories_in_hosts.md, `memory=none` none. It is put where its recipe has it, or into the layers of
`layers=0-5` (`layers=3`, `layers=2+last`); with `beside`, beside the attention of the host, through a
gate that begins at 0. What the host has learns at `host_rate=0.2` of the rate of the rest; `frozen`
keeps it as it is. `lora=8` adds low-rank parts to its queries and values. `segment=1024` is the length
of segments, `position=rotary` replaces the positions in the host's embeddings. With `memory=none`,
`context=1024` is the most that a token sees; without it the cache in training has at most 2,048 tokens.
`graft=FILE` puts what --mode=export --graft=FILE wrote onto an untouched host. It and a folder that was
exported with a memory are read in the segments of their training. `:tiny` is for two cores, and without
`path` of a small model of bytes that has learned nothing. What was loaded, is new, and was ignored is
printed. Without `--config.data` it reads the Python standard library. `:passkey` asks for keys that
were given in the books of `--config.data.path`, at distances in characters. `:practice` teaches a host
to tell such keys: low-rank parts learn from four keys at a time in short texts, in 48 steps. Then it
tells those that a memory finds in long ones (experiments/smollm2/practice.md).

The default is `memory=moba`, which gains .013 bits per byte on SmolLM2-135M without training. It keeps
all keys; `memory=sinks` keeps a window, and takes a third of the time (experiments/smollm2). A folder
that was exported with a memory keeps that one.
"""

import math
from typing import Any

from longmem_jax.config.base import base, read_bytes, two_cores
from longmem_jax.config.variants import one_of, variant, whole_number
from longmem_jax.errors import UsageError
from longmem_jax.hosts import grafting

SMALL = dict(
    model_type='gpt2', vocab_size=257, n_positions=256, n_embd=64, n_layer=3, n_head=4
)  # of bytes


def get_config(arg=''):
    config = base()
    host: dict[str, Any] = dict(source='', shape=grafting.GPT2_SMALL, context=0, graft='')
    where: dict[str, Any] = dict(layers='', rotary=False, beside=False)
    learned = dict(rate=0.2, lora=0)

    config.data.source = 'stdlib'
    config.data.tokenizer.kind = 'tokenizers'  # of the folder `path`
    config.optimizer.name = 'adamw'
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'linear'
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 10_000
    config.train.num_lanes = 8
    config.train.segment_length = 512
    config.train.segments_per_step = 2
    config.train.log_every = 50
    config.train.evaluate_every = 1000
    config.evaluate.num_lanes = 8
    config.evaluate.max_segments = 100

    def tiny(config):
        """A short training in segments of 64; without `path`, of a small model of bytes."""
        two_cores(config, steps=200, lanes=4, segment=64)
        read_bytes(config)
        config.optimizer.name = 'adamw'
        host.update(shape=SMALL)
        config.evaluate.num_lanes = 2
        config.evaluate.max_segments = 20
        config.evaluate.max_test_segments = 50

    def path(config, value):
        host.update(source=value)

    def graft(config, value):
        host.update(graft=value)

    def passkey(config):
        """Keys in prose, after Mohtashami and Jaggi (2023)."""
        config.data.source = 'passkey'
        config.data.task = dict(
            documents=1_000_000,
            eval_documents=256,
            answer_length=5,
            before=1000,
            num_keys=1,
            distances=(1000, 4000, 16_000),
        )

    def practice(config):
        passkey(config)
        config.data.task.update(eval_documents=16, before=300, num_keys=4, distances=(100, 1000))
        learned.update(rate=0.0, lora=8)
        # At twice the rate SmolLM2-135M lost .07 bits per byte on novels; at this one it loses less.
        config.optimizer.learning_rate = 5e-4
        config.optimizer.schedule = 'cosine'
        config.optimizer.warmup_steps = 3
        config.train.num_steps = 48
        config.train.log_every = 8
        config.train.num_lanes = config.evaluate.num_lanes = 1

    def segment(config, value):
        config.train.segment_length = whole_number('segment', value)

    def context(config, value):
        host.update(context=whole_number('context', value))

    def layers(config, value):
        if not value:
            raise UsageError('layers=: numbers of layers are needed, such as 3, 0-5 or 2+last.')
        where.update(layers=value)

    def position(config, value):
        one_of('position', value, ('rotary',))
        where.update(rotary=True)

    def beside(config):
        where.update(beside=True)

    def lora(config, value):
        learned.update(lora=whole_number('lora', value))

    def host_rate(config, value):
        try:
            learned.update(rate=float(value))
            if not 0 <= learned['rate'] < math.inf:
                raise ValueError
        except ValueError as error:
            raise UsageError(
                f'host_rate={value}: must be a number of at least 0, such as 0.2.'
            ) from error

    def frozen(config):
        learned.update(rate=0.0)

    def put(config, name, changes, **scale):
        given = {part.partition('=')[0].strip() for part in (arg or '').split(',')}
        if {'frozen', 'host_rate'} <= given:
            raise UsageError(
                'frozen with host_rate=: frozen is host_rate=0; leave one of the two out.'
            )
        length = grafting.use_host(config, **host)
        if length:  # a memory that was trained before, of a graft or an exported folder
            name = name if 'memory' in given else 'none'
            if host['context']:
                raise UsageError(
                    f'context={host["context"]}: the host has a memory already, whose context is a '
                    'segment; leave context= out, or give segment=N.'
                )
            if 'segment' not in given:
                config.train.segment_length = length
            config.data.add_bos = 'always'  # as its training read every text
        if host['graft']:
            if name != 'none' or where['layers'] or where['rotary'] or where['beside']:
                raise UsageError('graft=FILE: brings its memory; leave out memory= and its place.')
            config.model.lora.rank = learned['lora'] or config.model.lora.rank
            learn(config)
            return
        numbers = where['layers'] and grafting.numbers(where['layers'], config.model.num_layers)
        if name == 'none' and (where['layers'] or where['rotary'] or where['beside']):
            out = 'leave out layers=, position= and beside, which place a memory'
            if length and 'memory' not in given:
                raise UsageError(
                    f'{host["source"]}: this host was exported with a memory, which stays where it is; '
                    f'{out}, or give the folder of the host without a memory.'
                )
            raise UsageError(f'memory=none: {out}.')
        if name == 'none':
            grafting.keep_plain(config, host['context'])
        elif host['context']:
            raise UsageError(
                'context=N: is for memory=none; with a memory, segment=N is the context.'
            )
        else:
            grafting.graft(config, name, **where | dict(layers=numbers), **scale)
        config.model.lora.rank = learned['lora']
        learn(config)

    def learn(config):
        grafting.rate_of_host(config, learned['rate'])
        if host['shape'] is not SMALL:
            # With SmolLM2-135M, 8 lanes and two segments of 512, a step in bfloat16 has 25 GB of
            # temporaries, not 73, and 9 % more operations (compiled for a CPU).
            grafting.spare_scores(config.model)

    return variant(
        config,
        arg,
        memory='none' if 'graft=' in (arg or '') else 'moba',
        put=put,
        others=('none',),
        tiny=tiny,
        path=path,
        graft=graft,
        passkey=passkey,
        practice=practice,
        segment=segment,
        context=context,
        layers=layers,
        position=position,
        beside=beside,
        lora=lora,
        host_rate=host_rate,
        frozen=frozen,
    )
