"""One model and one way of training for every memory of the library, on several tasks.

python -m longmem_jax.main --config=configs/leaderboard.py:task=mqar,memory=infini --workdir=DIR
`:memory=` is any memory of the library. `:task=` is `mqar` (many pairs, each asked for), `surface`
(the same with 1, 4 or 16 pairs and a distance between list and questions), `state` (products in the
group S5; with `:tiny` S3), `swaps` (products of swaps in S5), `copying` (words among blanks, then the
words), `vt`, `fwe`, `niah_single_1`, `cwe` (RULER; the last two need `pip install -e '.[ruler]'`),
`qa1` to `qa3` (BABILong, among the standard library's docstrings), `stdlib` (bytes of Python's standard
library) or `text` (bytes of `--config.data.path=FOLDER`). `:tiny` has 2 layers of 64, for two cores.
This is not an experiment of a paper; `python -m experiments.leaderboard` runs it for all memories and
makes the table, with feed-forward layers of a width that makes parameters equal.
In RULER, BABILong and `surface` a step has at least as many tokens per lane as the longest document;
who sets `train.segment_length` sets `train.segments_per_step` too.
All attention sees half of the token before (`token_shift`), and in RULER and BABILong, where what is
looked up has several tokens, a part of each of the last eight: a layer that cannot single out what is
just before would otherwise be worse in every task, for no reason of its memory, and the others would
take thousands of steps to find it.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import new_segment, one_of, variant

RULER = ('vt', 'fwe', 'niah_single_1', 'cwe')
BABILONG = ('qa1', 'qa2', 'qa3')
DELTA_RULES = ('delta_net', 'gated_delta_net', 'kimi_delta')
TASKS = ('mqar', 'surface', 'state', 'swaps', 'copying', *RULER, *BABILONG, 'stdlib', 'text')


def get_config(arg=''):
    config = base()

    size(config, layers=4, width=256, heads=4, feed_forward=1024)
    config.model.dtype, config.model.token_shift = 'bfloat16', 'half'
    config.optimizer.learning_rate = 1e-3
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 500
    config.optimizer.clip_norm = 1.0
    config.train.num_steps = 20_000
    config.train.num_lanes = 64
    config.train.segment_length = 128
    config.train.segments_per_step = 4
    config.train.log_every = 100
    config.train.evaluate_every = 5000
    config.evaluate.num_lanes = 64
    config.evaluate.max_segments = 64
    config.generate.sample_length = 0
    scale: dict[str, Any] = dict(reach=512, memories=8192)
    memories: dict[str, Any] = {}
    # Of the tasks: words; length and pairs; documents of evaluation.
    sizes: dict[str, Any] = dict(
        words=1024,
        pairs=((128, 8), (256, 16), (512, 32), (1024, 64)),
        fill='others',
        documents=512,
        fillers=64,
        vocabulary=4096,  # of RULER and BABILong
        longest=512,  # of BABILong
        # Of RULER: from about the shortest that fits, which its answer and its vocabulary decide.
        ruler=dict(
            vt=(320, 512, 768, 1024),
            fwe=(256, 512, 768, 1024),
            niah_single_1=(384, 512, 768, 1024),
            cwe=(512, 768, 1024),
        ),
        ruler_steps=10_000,
        babilong_steps=20_000,
        group='S5',
        products=(4, 8, 16, 32, 64),
        swaps_steps=20_000,
        copying=(256, 16),  # tokens of a document and of what is copied, as in MAD
        copying_steps=20_000,
    )

    def tiny(config):
        """2 layers of 64, segments of 32; a minute or two per task on a core."""
        size(config, layers=2, width=64, heads=2, feed_forward=256)  # wide: room for tables
        two_cores(config, steps=1000, lanes=8, segment=32)
        config.optimizer.learning_rate = 3e-3
        config.train.log_every = 50
        config.train.evaluate_every = 500
        config.evaluate.num_lanes = 16
        scale.update(
            reach=256, memories=2048, basis=64, samples=32, widths=(0.02, 0.05), slots=16, keys=16
        )
        sizes.update(
            words=128,
            pairs=((32, 4), (64, 8), (128, 16)),
            fill='blank',
            documents=96,
            fillers=8,
            vocabulary=512,
            longest=256,
            ruler=dict(
                vt=(320, 384, 448, 512),
                fwe=(256, 320, 384, 512),
                niah_single_1=(384, 416, 448, 512),
                cwe=(640, 704, 768),
            ),
            ruler_steps=2500,
            babilong_steps=1500,
            group='S3',  # 1,000 steps are too few for any memory to begin with S5
            products=(2, 4, 8, 16),
            swaps_steps=2000,
            copying=(64, 8),
            copying_steps=2000,
        )

    def a_fifth_more(longest):
        """Segments of a step in which a longest document of facts and questions is mostly whole.

        Where a step has fewer tokens, no gradient leads from many a question to what it asks for, and
        some memories do not begin (experiments/beginning).
        """
        return -(-6 * longest // (5 * config.train.segment_length))

    def task(config, name):
        """What the model is trained on."""
        data = config.data
        one_of('task', name, TASKS)
        # Bytes or words: one model for all tasks, which is compiled once.
        config.model.vocab_size = max(257, sizes['words'])
        if name in ('stdlib', 'text'):
            data.source, data.pieces = name, 16
            config.data.tokenizer = dict(kind='bytes', path='', size=0)
            config.evaluate.max_test_segments = 512
            return
        shared = dict(documents=10_000_000, eval_documents=sizes['documents'])
        if name in RULER + BABILONG:
            data.source = 'ruler' if name in RULER else 'babilong'
            # Short documents too, from which looking up is learned first.
            if name in RULER:
                own: dict[str, Any] = dict(lengths=sizes['ruler'][name], example=False)
                config.train.num_steps = sizes['ruler_steps']
                # As many tokens per lane as the longest document. With 128 (`:tiny`) number and answer
                # were rarely in one step; a seed that was looked into copied all but the first token.
                segments = -(-own['lengths'][-1] // config.train.segment_length)
                config.train.segments_per_step = segments
            else:
                longest = sizes['longest']
                own = dict(lengths=(0, longest // 4, longest // 2, longest), prompt=0)
                # Joining facts takes longer to learn. With `:tiny` and seed 0 `delta_net` answers 70 %
                # of qa2 after 1,500 steps, and 89 after 4,500.
                config.train.num_steps = sizes['babilong_steps'] * (1 if name == 'qa1' else 3)
                config.train.segments_per_step = a_fifth_more(longest)
            config.model.token_shift = 'last_eight'
            data.task = shared | own | dict(name=name)
            config.model.vocab_size = sizes['vocabulary']
            data.tokenizer = dict(kind='bpe', path='', size=sizes['vocabulary'])
            return
        if name in ('state', 'swaps'):
            data.source = 'state_tracking'
            own = dict(group=sizes['group'], lengths=sizes['products'])
            if name == 'swaps':
                own['group'] = 'S5_swaps'
                config.train.num_steps = sizes['swaps_steps']
            data.task = shared | own
            # What is before a segment is the memory's.
            new_segment(config, str(sizes['products'][-1] // 2))
            # Made for this: without them a delta rule cannot turn what it holds into its opposite.
            memories.update(dict.fromkeys(DELTA_RULES, given(negative_eigenvalues=True)))
            return
        if name == 'copying':
            data.source = 'mad'
            length, copied = sizes['copying']
            own = dict(kind='copying', length=length, num_words=16, num_copied=copied)
            own.update(num_noise=0, noise=0.0, key_length=1, value_length=1, train_on_text=False)
            data.task = shared | own
            config.train.num_steps = sizes['copying_steps']
            config.train.segments_per_step = length // config.train.segment_length
            return
        data.source = 'mqar'
        if name == 'surface':
            most = 16  # pairs
            config.train.segments_per_step = a_fifth_more(4 * most + scale['reach'])
            data.task = shared | dict(
                num_words=config.model.vocab_size - sizes['fillers'],
                sizes=tuple((4 * pairs, pairs) for pairs in (1, 4, most)),
                power=1.0,  # the questions fill all of their places
                passes=1,
                fill='blank',
                distances=(0, scale['reach']),
                num_fillers=sizes['fillers'],
            )
            return
        data.task = shared | dict(
            num_words=sizes['words'],
            sizes=sizes['pairs'],
            power=0.01,
            passes=1,
            fill=sizes['fill'],
        )

    named = {item.partition('=')[0].strip() for item in arg.split(',')}
    argument = arg if 'task' in named else ','.join(filter(None, (arg, 'task=mqar')))
    return variant(
        config, argument, memory='local', memories=memories, scale=scale, tiny=tiny, task=task
    )
