r"""The thesis on Infini-attention in small models (Kesküll, 2024) at small size, on generated stories.

python -m experiments.infini_attention.stories --output=DIR [--rows=local_64,tuned_64] [--seeds=3] \
    [-- --config.FIELD=VALUE ...]

Trains `configs/tinystories_gpt_neo.py:tiny`, of 2 layers of 64, with every row and seed: `local_32` to
`local_512`, the model without a memory, by length of segments (Table 1); `infini_64`, with the memory
from the start; `tuned_32`, `local_512` of the same seed trained on in segments of 32 with the memory.
`alone_64` is trained on without the memory, and `steady_64` with it at a rate that does not fall.

DIR/ROW/SEED.json has scores with the memory and with it reset before every segment, those of pairs of
sentences, and the betas over training; beside it stand the parameters. What is there is not done
again. Every call writes DIR/stories.json, .md and .png.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

from configs import tinystories_gpt_neo
from experiments import provenance
from experiments.infini_attention import story_report, story_scores
from experiments.options import add_seeds, make_parser, parse_with_flags, some_of
from experiments.short_trainings import Trainer
from longmem_jax import files
from longmem_jax.config import overrides
from longmem_jax.data import load
from longmem_jax.data.sets.stories import Stories
from longmem_jax.errors import UsageError

TESTED, LOOKED_AT, PAIRS = 200, 25, 200  # stories at the end and in training; pairs of sentences
BASE = 'local_512'  # of fine-tuning
BETAS, EVERY = 50, 200  # steps between looks at the betas, and at the scores
LENGTHS = (32, 64, 128, 256)
WORDS = (
    '--config.data.tokenizer.kind=words', '--config.data.tokenizer.size=0',
    '--config.model.vocab_size=256', '--config.data.task.episodes=(11, 13)',
)  # fmt: skip
SHORTER = '--config.train.num_steps=1000'
STEADY = ('--config.optimizer.schedule=constant', '--config.optimizer.warmup_steps=0')


class Row(NamedTuple):
    """A row of the table.

    Attributes:
      variants: of the config, after `tiny`.
      flags: of the command line.
      tuned: begins with the parameters of `BASE`.
    """

    variants: str
    flags: tuple[str, ...] = ()
    tuned: bool = False


ROWS = {
    **{f'local_{n}': Row(f'memory=local,segment={n}') for n in (*LENGTHS, 512)},
    **{f'infini_{n}': Row(f'segment={n}') for n in LENGTHS},
    **{f'tuned_{n}': Row(f'segment={n}', (SHORTER,), True) for n in LENGTHS},
    'alone_64': Row('memory=local,segment=64', (SHORTER,), True),
    'steady_64': Row('segment=64', (SHORTER, *STEADY), True),
}


def config_of(name: str, flags: list[str]) -> Any:
    """The configuration of a row, with further flags."""
    row = ROWS[name]
    config = tinystories_gpt_neo.get_config(f'tiny,{row.variants}')
    overrides.apply(config, overrides.split_arguments([*WORDS, *row.flags, *flags])[1])
    return config


def betas(params: Any) -> dict[str, list[float]]:
    """The beta of every head by block; the weight of the memory is sigmoid(beta). Empty for `local`."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        names = [key.key for key in path]
        if names[-2:] == ['attention', 'gate']:
            found[next(name for name in names if name.startswith('block_'))] = leaf
    return {
        name: np.round(leaf, 4).tolist() for name, leaf in sorted(jax.device_get(found).items())
    }


class Runs:
    """Trains and scores the seeds of a row; what is finished is kept."""

    def __init__(self, name: str, config: Any, output: Path, flags: list[str]):
        """Compiles nothing before it is needed."""
        self._name, self._output, self._flags = name, output, flags
        self._config, self._trainer = config, Trainer(config)

    def run(self, seed: int) -> None:
        """Adds the cell of a seed.

        Raises:
          UsageError: it was made with other flags, or the seed of `BASE` is missing.
        """
        path = self._output / self._name / f'{seed}.json'
        if path.exists():
            before = provenance.read(path, 'flags')['flags']
            provenance.require_same(path, before, self._flags)
            return
        begin = self._base(seed) if ROWS[self._name].tuned else None
        model, course = self._trainer.shared.evaluation_model, list[dict[str, Any]]()

        def look(step: int, params: Any) -> None:
            if step % BETAS:
                return
            found: dict[str, Any] = {'step': step, 'betas': betas(params)}
            if step % EVERY == 0:
                now = self._scores(params, seed, 'validation', LOOKED_AT)['kept']
                found |= {name: now[name]['facts'] for name in ('accuracy', 'pairs')}
                found['sentences'] = self._sentences(params)
            if found['betas'] or len(found) > 2:
                course.append(found)

        trained = self._trainer.train(seed, None, 100, begin, look)
        params = jax.device_get(trained.params)
        cell = {
            'flags': self._flags,
            'steps': trained.steps,
            'parameters': sum(leaf.size for leaf in jax.tree.leaves(params)),
            'scores': self._scores(params, seed, 'test', TESTED),
            'sentences': self._sentences(params),
            'course': course,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.whole_file(path.with_suffix('.msgpack')) as partial:
            partial.write_bytes(msgpack_serialize(params))
        provenance.save(path, cell, [seed])
        kept, reset = (cell['scores'][memory]['accuracy'] for memory in ('kept', 'reset'))
        print(
            f'{self._name}, seed {seed}: {kept["facts"]:.1f} % of the facts, reset '
            f'{reset["facts"]:.1f} ({model.segment_length} tokens)',
            flush=True,
        )

    def _base(self, seed: int) -> Any:
        path = self._output / BASE / f'{seed}.msgpack'
        if not path.exists():
            raise UsageError(f'{path} is missing: run --rows={BASE} with this seed first.')
        return msgpack_restore(path.read_bytes())

    def _scores(self, params: Any, seed: int, split: str, count: int) -> dict[str, Any]:
        """Scores of stories, with the memory and, on test, with it reset."""
        model, tokenizer = self._trainer.shared.evaluation_model, self._trainer.shared.tokenizer
        data, length = self._config.copy_and_resolve_references().data, model.segment_length
        data.task.eval_documents, data.seed = count, seed
        told = story_scores.told_texts(Stories(data, split), tokenizer, length)
        passes = {'kept': False} | ({'reset': True} if split == 'test' else {})
        return {
            name: story_scores.scores(
                told, story_scores.losses(model, params, told, tokenizer.begin, reset), length
            )
            for name, reset in passes.items()
        }

    def _sentences(self, params: Any) -> dict[str, float]:
        """Pairs of sentences whose right one is likelier, in %."""
        model, tokenizer = self._trainer.shared.evaluation_model, self._trainer.shared.tokenizer
        found = {}
        for kind in story_scores.KINDS:
            pairs = story_scores.sentence_texts(kind, PAIRS, tokenizer)
            losses = story_scores.losses(model, params, pairs, tokenizer.begin, False)
            found[kind] = story_scores.preferred(pairs, losses)
        return found


def parse(given: list[str]) -> argparse.Namespace:
    """The options; `flags` are those after `--`."""
    parser = make_parser(__doc__, 'experiments.infini_attention.stories')
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--rows', type=some_of(ROWS), default=list(ROWS), metavar='ROW,ROW')
    add_seeds(parser)
    return parse_with_flags(parser, given)


def main(given: list[str]) -> None:
    """Runs the command."""
    options = parse(given)
    options.output.mkdir(parents=True, exist_ok=True)
    load.make_tokenizer(config_of(BASE, options.flags).data, options.output)
    path = options.output / 'tokenizer.words.0.txt'
    for name in options.rows:
        flags = [*options.flags, f'--config.data.tokenizer.path={path}']
        runs = Runs(name, config_of(name, flags), options.output, options.flags)
        for seed in options.seeds:
            runs.run(seed)
        jax.clear_caches()
    print(story_report.write(options.output))


if __name__ == '__main__':
    main(sys.argv[1:])
