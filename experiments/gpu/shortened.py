"""The papers' text configs, shortened to eight minutes of a GPU, beside their baselines.

The layers, widths, segments, dropout, rates and losses are the config's. Not the paper's, in all rows:
the text (novels, Python packages, or both, 46 MB to train on), the vocabulary, which is learned from it,
the steps, the lanes and the warm-up. What else differs is said where it is set.

How the steps were chosen: steps x tokens x parameters x 6, and the scores that long spans add, take 10
to 50 s at 30 % of 990e12 operations a second. Measured steps of other models had 6 to 17 % (steps.md),
so a training takes one to four minutes; compiling takes one or two, tests and validations one. Scores
kept for the derivatives are 36 GB at most, at 10 bytes each. No row has been timed on a GPU yet.
"""

import importlib
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from experiments.gpu.job import Place, seeds
from experiments.gpu.trainings import SAVED, text, train
from longmem_jax.config import overrides
from longmem_jax.data import load
from longmem_jax.data.learn_tokenizer import SUFFIX

Fields = dict[str, Any]


class Shortened(NamedTuple):
    """A config whose rows share text, lanes and steps.

    Attributes:
      texts: folders of the data.
      steps, lanes, warmup: of training.
      fields: of the config, of all rows.
      rows: by name, the variants, and fields of this row alone.
      tiny: instead of `fields`, which are of the size, where it is only to be seen that a row runs.
    """

    texts: tuple[str, ...]
    steps: int
    lanes: int
    warmup: int
    fields: Fields
    rows: dict[str, tuple[str, Fields]]
    tiny: Fields = {}


# Twelve novels are read by up to 64 lanes; a piece is longer than what any row remembers.
PIECES = {'data.pieces': 8, 'evaluate.num_lanes': 8}
BYTES = {'data.tokenizer.kind': 'bytes', 'data.tokenizer.size': 0, 'model.vocab_size': 264}
# Words of novels have 170,000 forms, and most of them occur once: `<unk>` is every thirty-fifth word of
# training. Without the third cluster of the paper's 267,735 words.
WORDS = {
    'data.tokenizer.size': 60_000, 'model.vocab_size': 60_032, 'model.cutoffs': (20_000, 40_000),
    'model.tie_projections': (False, True, True),
}  # fmt: skip
SPAN = 4096  # for 16k, which no span reaches in so few steps
# Every size of a buffer of spans is compiled by itself.
EXPIRE, ADAPTIVE = {'model.expire_span.num_sizes': 3}, {'model.adaptive_span.num_sizes': 3}
SPANS = {
    'Expire-Span': (f'memory=expire_span,span={SPAN}', EXPIRE),
    'fixed span': ('memory=transformer_xl', {}),
    'Adaptive-Span': (f'memory=adaptive_span,span={SPAN}', ADAPTIVE),
    'Compressive': ('memory=compressive', {
        'model.compressive.memory_length': SPAN // 2,
        'model.compressive.compressed_length': SPAN // 8,
    }),
}  # fmt: skip
NOVELS, PACKAGES = ('novels',), ('code',)

CONFIGS = {
    'expire_span_enwik8': Shortened((*NOVELS, *PACKAGES), 2000, 16, 200, {}, SPANS),
    # Bytes for characters, which in these novels are nearly the same.
    'expire_span_pg19': Shortened(NOVELS, 3000, 8, 300, BYTES, {
        'Expire-Span': ('memory=expire_span', EXPIRE),
        'fixed span': ('memory=transformer_xl', {}),
        'Adaptive-Span': ('memory=adaptive_span,span=8192', ADAPTIVE),
    }),
    # Spans of 2,048 for 8,192, as long as the fixed one.
    'expire_span_wikitext103': Shortened(NOVELS, 1500, 32, 150, WORDS, {
        'Expire-Span': ('memory=expire_span,span=2048', EXPIRE),
        'fixed span': ('memory=transformer_xl', {}),
    }),
    'infinity_former_wikitext103': Shortened(NOVELS, 2000, 40, 0, WORDS, {
        'Transformer-XL': ('memory=transformer_xl', {}),
        'Compressive': ('memory=compressive', {}),
        'infinity-former': ('memory=infinity_former', {}),
        'sticky': ('memory=infinity_former,sticky=quantile', {}),
    }),
    'memformer_wikitext103': Shortened(
        NOVELS, 1000, 16, 100, {'data.documents': 'file'},
        {
            'Memformer': ('memory=memformer', {}),
            'Transformer-XL': ('memory=transformer_xl', {}),
            'Compressive': ('memory=compressive', {}),
        },
        tiny={'data.documents': 'file'},
    ),
    'mem_transformer_wikitext103': Shortened(
        NOVELS, 1500, 64, 0, WORDS,
        {
            'memory tokens': ('memory=memory_tokens', {}),
            'no memory tokens': (
                'memory=transformer_xl', {'model.transformer_xl.memory_length': 150}
            ),
        },
        tiny={'data.tokenizer.size': 20_000},
    ),
    'memorizing_pg19': Shortened(NOVELS, 1500, 16, 150, {}, {
        '8192 memories': ('size=8192', {}), 'no memory': ('size=0', {}),
    }),
    # Seventeen packages, a file each.
    'memorizing_code': Shortened(
        PACKAGES, 1500, 16, 150, {'data.endings': ('.xz',)},
        {'8192 memories': ('size=8192', {}), 'no memory': ('size=0', {})},
        tiny={'data.endings': ('.xz',)},
    ),
    # Width 512 for 1,024, 256 x 256 slots for 512 x 512, 32,000 pieces for 60,000.
    'pkm_lm': Shortened(
        NOVELS, 2000, 32, 200,
        {
            'model.d_model': 512, 'model.d_embed': 512, 'model.head_dim': 32,
            'model.d_feed_forward': 2048, 'data.tokenizer.size': 32_000, 'model.vocab_size': 32_128,
        },
        {
            '12 layers with slots': ('layers=12', {'model.product_key.num_keys': 256}),
            '12 layers': ('layers=12,plain', {}),
            '24 layers': ('layers=24,plain', {}),
        },
    ),
}  # fmt: skip


def cells(tiny: bool) -> list[str]:
    """Every row of every config, all of the first seed first; tiny, one that learns a vocabulary."""
    names = [f'{config}/{row}' for config, short in CONFIGS.items() for row in short.rows]
    return seeds(['mem_transformer_wikitext103/no memory tokens'] if tiny else names, 3, tiny)


def arguments(place: Place, config: str, row: str) -> tuple[str, list[str]]:
    """Variants and flags of a row; tiny, without the fields that are of the size."""
    short = CONFIGS[config]
    variants, of_row = short.rows[row]
    fields = {
        'train.num_steps': short.steps, 'train.num_lanes': short.lanes,
        'train.evaluate_every': short.steps // 4, 'optimizer.warmup_steps': short.warmup,
        **PIECES, **short.fields, **of_row,
    }  # fmt: skip
    if place.tiny:
        variants, fields = f'tiny,{variants}', short.tiny
    given = [f'--config.{name}={value}' for name, value in fields.items()]
    return variants, [*text(place, *short.texts), *given, SAVED]


def config_of(config: str, variants: str, flags: list[str]) -> Any:
    """The configuration of a row."""
    found = importlib.import_module(f'configs.{config}').get_config(variants)
    overrides.apply(found, overrides.split_arguments(flags)[1])
    return found


def vocabulary(data: Any, folder: Path) -> list[str]:
    """A flag with the vocabulary, which all rows of a config share; [] of bytes."""
    kind, size = data.tokenizer.kind, data.tokenizer.size
    if kind == 'bytes':
        return []
    folder.mkdir(parents=True, exist_ok=True)
    load.make_tokenizer(data, folder)
    return [f'--config.data.tokenizer.path={folder / f"tokenizer.{kind}.{size}{SUFFIX[kind]}"}']


def shortened(place: Place, cell: str, folder: Path) -> dict[str, Any]:
    """A text config of a paper with fewer steps; bits per byte and perplexity of the test text."""
    config, row, seed = cell.split('/')
    variants, flags = arguments(place, config, row)
    data = config_of(config, variants, flags).data
    flags += vocabulary(data, folder.parents[1] / 'vocabulary')
    found = train(place, folder / 'run', config, variants, flags, int(seed))
    # Three of them are up to 5 GB, and a finished cell does not go on.
    shutil.rmtree(folder / 'run' / 'checkpoints', ignore_errors=True)
    return found
