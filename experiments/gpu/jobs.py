"""The jobs of the suite, the most valuable first."""

import functools

from experiments.gpu import (
    agreement,
    attention,
    drawing,
    hosts,
    papers,
    shortened,
    steps,
    trainings,
)
from experiments.gpu.job import Job
from longmem_jax.testing import conformance

BITS = (('bits/byte', 'test.bits_per_byte', '.3f'), ('reset', 'reset.bits_per_byte', '.3f'))
SCORES = (
    ('right, %', 'test.exact_match', '.1%'), ('reset, %', 'reset.exact_match', '.1%'),
    ('right tokens', 'test.accuracy', '.1%'), ('reward', 'test.reward', '.2f'),
    ('memory size', 'memory_size', ',.0f'), ('ms/step', 'ms_per_step', '.1f'),
)  # fmt: skip
GOOD = ('good', 'good', '.0f')
AGREED = (('files', 'files', '.0f'), GOOD, ('worst error, tolerances', 'worst', '.2g'))


def _toys(tiny: bool) -> list[str]:
    """The entries of the conformance suite, without their variants."""
    names = list(dict.fromkeys(name for name, _ in conformance.cases()))
    return names[: 1 if tiny else None]


_ALL = (
    Job(
        'goldens', "Are the numbers those of the authors' code?", 1,
        agreement.systems, agreement.goldens, AGREED, beside=14, timed=False,
    ),
    Job(
        'conformance', 'Does every memory keep the promises of the contract?', 1,
        _toys, agreement.promises, (('promises', 'promises', '.0f'), GOOD), beside=14, timed=False,
    ),
    Job(
        'tf32', 'How far are they from them with products in TF32, as a GPU takes them by default?', 1,
        agreement.systems, functools.partial(agreement.goldens, precision='default'), AGREED,
        beside=14, timed=False,
    ),
    Job(
        'steps', 'How long does a training step take, beside PyTorch and fla?', 2,
        steps.step_cells, steps.step,
        (
            ('ms', 'ms_median', '.1f'), ('in a row, ms', 'row_ms', '.1f'),
            ('kernels', 'kernels', ',.0f'), ('in kernels, ms', 'kernels_ms', '.1f'),
            ('tokens/s', 'tokens_per_s', ',.0f'),
            ('share of peak', 'share', '.1%'), ('memory, bytes', 'device_bytes', ',.0f'),
            ('compiling, s', 'compile_s', '.0f'),
        ), beside=4,
    ),
    Job(
        'attention', 'How long does the attention of one layer take, beside cuDNN?', 2,
        attention.cells, attention.attention,
        tuple(
            (f'{kind}{words}', f'{kind}.{what}', form)
            for kind in ('plain', 'fused', 'cudnn')
            for words, what, form in (
                (', ms', 'both', '.2f'), (' forwards', 'forward', '.2f'), (', error', 'error', '.1e'),
            )
        ), beside=4,
    ),
    Job(
        'authors', "How long does it take beside the authors' own code?", 3,
        steps.authors_cells, steps.authors,
        (
            ('theirs, ms', 'peer.wall.median', '.1f'), ('ours, ms', 'ours.wall.median', '.1f'),
            ('theirs / ours', 'ratio.wall.median', '.2f'),
        ),
    ),
    Job(
        'compiling', 'How long does a step compile, and how much of it is tuning?', 6,
        steps.compile_cells, steps.compiling,
        tuple(
            (f'layers: {layers}, {what}, s', f'layers.{layers}.{what}', '.0f')
            for layers in steps.LAYERS_COMPILED for what in ('traced', 'compiled', 'not tuned')
        ),
    ),
    Job(
        'drawing', 'How long does a token take after 1 k to 1 M tokens, beside transformers?', 6,
        drawing.cells, drawing.drawing,
        tuple(
            (f'{what} after {n:,}, ms', f'contexts.{n}.{key}', '.3f')
            for n in drawing.CONTEXTS for what, key in (('read', 'read_ms'), ('drawn', 'drawn_ms'))
        ),
    ),
    Job(
        'language', 'What does each memory gain in a language model of novels and code?', 8,
        trainings.language_cells, trainings.language,
        (
            *BITS, *((f'to segment {end}', f'parts.{end}', '.3f') for end in (8, 32, 128, 512)),
            ('parameters', 'parameters', ',.0f'),
        ),
        seeded=True,
    ),
    Job(
        'papers', "What comes out of the papers' tasks at their size?", 30,
        papers.paper_cells, papers.paper, SCORES, seeded=True,
    ),
    Job(
        'corridor', 'Does Expire-Span hold less than a fixed span in corridors of 100 and 200?', 4,
        papers.corridor_cells, papers.corridors,
        (
            ('reward', 'test.reward', '.2f'), ('steps held, all layers', 'held_together', '.1f'),
            ('steps held, a layer', 'held.mean', '.1f'),
        ), seeded=True,
    ),
    Job(
        'configs', "What comes out of the papers' text configs, shortened, beside their baselines?", 8,
        shortened.cells, shortened.shortened,
        (
            *BITS, ('perplexity', 'test.perplexity', '.2f'), *SCORES,
            ('parameters', 'parameters', ',.0f'),
        ), seeded=True,
    ),
    Job(
        'hosts', 'Does a memory help SmolLM2 at a window of 512?', 6, hosts.cells, hosts.reading,
        tuple(
            (f'{when}{words}', f'parts.{when}.{end}', '.4f')
            for when in ('before', 'after')
            for end, words in ((8, ', to 4,096 tokens'), (32, ', to 16,384'), (128, ', to 65,536'))
        ), seeded=True, beside=3,
    ),
    Job(
        'keys', 'How many windows back does SmolLM2 with a memory find a key?', 6,
        hosts.cells, hosts.keys,
        tuple((f'{n} windows', f'right.{n}', '.0%') for n in hosts.WINDOWS), seeded=True, beside=3,
    ),
    Job(
        'long', 'How far do RULER and BABILong go, to ten million tokens?', 16,
        trainings.long_cells, trainings.long,
        tuple((f'{n:,}', f'right.{n}', '.0%') for n in trainings.LONG), seeded=True,
    ),
    Job(
        'second_reading', 'What is kept of a text after 30 M tokens of training?', 8,
        trainings.second_cells, trainings.second,
        tuple((f'{n:,} B', f'saved.{n}', '.2f') for n in trainings.LENGTHS), seeded=True,
    ),
)  # fmt: skip
JOBS = {job.name: job for job in _ALL}
