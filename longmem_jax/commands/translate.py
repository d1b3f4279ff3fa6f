"""Translation of texts and of whole splits by beam search, and BLEU."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from longmem_jax.data.parallel import source_places
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.experiment import Experiment
from longmem_jax.generation.beam_search import beam_search
from longmem_jax.reporting.progress import Progress
from longmem_jax.reporting.results import show

SPLITS = ('train', 'validation', 'test')


class Translator:
    """Translates with given parameters; compiles once.

    Attributes:
      model: a `Seq2Seq`.
      tokenizer: of both languages.
      settings: `config.translate`.
      max_target: tokens of a translation at most, its end among them.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: Any, max_target: int):
        """Compiles nothing yet."""
        self.model, self.tokenizer = model, tokenizer
        self.settings, self.max_target = settings, max_target
        search = functools.partial(_search, model, tokenizer.begin, max_target)
        self._search = jax.jit(search, static_argnums=(2, 3))

    def __call__(self, params: Any, texts: Iterable[str]) -> list[str]:
        """The best translation of every text; sources are cut at `max_source` tokens."""
        places = self.model.config.seq2seq.max_source
        lanes, beams = self.settings.num_lanes, self.settings.beams
        rows = [source_places(self.tokenizer.encode(text.encode()), places) for text in texts]
        found = []
        for start in range(0, len(rows), lanes):
            part = rows[start : start + lanes]
            padded = np.stack([*part, *[part[-1]] * (lanes - len(part))])
            tokens = self._search(
                params, jnp.asarray(padded), beams, float(self.settings.length_penalty)
            )
            found.extend(np.asarray(tokens)[: len(part)])
        return [self._text(row) for row in found]

    def _text(self, row):
        ends = np.flatnonzero(row == self.tokenizer.begin)
        tokens = row[: ends[0]] if len(ends) else row
        return self.tokenizer.decode(tokens).decode('utf-8', 'replace').strip()


def _search(model, begin, max_target, params, source, beams, length_penalty):
    """The best translation of every source, int32 [lanes, max_target]."""
    variables = {'params': params}
    cache = model.apply(variables, source, method='open_target')

    def step(tokens, cache, place):
        index = jnp.broadcast_to(place, tokens.shape).astype(jnp.int32)
        logits, cache = model.apply(variables, tokens[:, None], cache, index, method='extend')
        return logits[:, 0], cache

    tokens, _ = beam_search(
        step,
        cache,
        source.shape[0],
        begin=begin,
        end=begin,
        beams=beams,
        max_length=max_target,
        length_penalty=length_penalty,
    )
    return tokens[:, 0]


def bleu(translations: list[str], references: list[str]) -> tuple[float, str]:
    """BLEU-4 of sacrebleu in percent, and its signature: tokenisation, case, smoothing, version."""
    import sacrebleu

    metric = sacrebleu.metrics.BLEU()
    score = metric.corpus_score(translations, [references]).score
    return score, str(metric.get_signature())


def translate_split(experiment: Experiment, params: Any, split: str, progress: Progress) -> dict:
    """BLEU of a split; the translations go to `WORKDIR/translations.SPLIT.txt`.

    Args:
      experiment: of the kind 'seq2seq'.
      params: its parameters.
      split: 'train', 'validation' or 'test'.
      progress: where the result is said.

    Returns:
      'bleu', 'bleu_signature', 'sentences', 'beams', 'length_penalty'; also written to
      `WORKDIR/bleu.SPLIT.json`.
    """
    settings = experiment.config.translate
    pairs = experiment.corpus(split).pairs
    number = min(len(pairs), settings.max_sentences or len(pairs))
    texts, references = zip(*(pairs[i] for i in range(number)), strict=True)
    translator = Translator(
        experiment.evaluation_model,
        experiment.tokenizer,
        settings,
        experiment.config.data.pairs.max_target,
    )
    progress.say(f'Translating {number:,} sentences of {split}, {settings.beams} beams ...')
    translations = translator(params, texts)
    score, signature = bleu(translations, list(references))
    result = {
        'bleu': score,
        'bleu_signature': signature,
        'sentences': number,
        'beams': settings.beams,
        'length_penalty': settings.length_penalty,
    }
    if jax.process_index() == 0:
        workdir = experiment.workdir
        lines = ''.join(' '.join(text.splitlines()) + '\n' for text in translations)
        (workdir / f'translations.{split}.txt').write_text(lines, encoding='utf-8')
        (workdir / f'bleu.{split}.json').write_text(json.dumps(result, indent=1) + '\n')
    progress.say(f'{split}: BLEU {score:.2f} of {number:,} sentences ({signature})')
    for i in range(min(3, number)):
        progress.say(f'  {texts[i]}\n  > {translations[i]}\n  = {references[i]}')
    return result


def evaluate(experiment: Experiment, split: str) -> dict[str, Any]:
    """`--mode=evaluate`: loss and BLEU of a split by the newest checkpoint.

    Raises:
      UsageError: an unknown split, several processes, or no checkpoint.
    """
    if split not in SPLITS:
        raise UsageError(f'--split={split}: allowed are {", ".join(SPLITS)}.')
    if jax.process_count() > 1:
        raise UsageError("--mode=evaluate of a 'seq2seq' model runs in one process.")
    progress = Progress(0, log_every=0)
    params, step = experiment.restore_parameters()
    progress.say(f'Evaluating step {step:,} of {experiment.workdir}.')
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)
    result, _ = evaluator.evaluate(
        params,
        experiment.corpus(split),
        split,
        max_segments=experiment.config.evaluate.max_test_segments,
    )
    found = translate_split(experiment, params, split, progress)
    progress.close()
    show(progress, {split: result}, '', {'translations': _place(experiment, split)})
    return {split: result, **found}


def _place(experiment: Experiment, split: str) -> Path:
    return experiment.workdir / f'translations.{split}.txt'


def translate_prompt(experiment: Experiment, text: str) -> list[str]:
    """`--mode=generate`: prints the translation of every line of a text.

    Raises:
      UsageError: no text, several processes, or no checkpoint.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError("--prompt='': a text to translate is needed, or @FILE.")
    if jax.process_count() > 1:
        raise UsageError('--mode=generate runs in one process.')
    params, _ = experiment.restore_parameters()
    translator = Translator(
        experiment.evaluation_model,
        experiment.tokenizer,
        experiment.config.translate,
        experiment.config.data.pairs.max_target,
    )
    found = translator(params, lines)
    print('\n'.join(found))
    return found
