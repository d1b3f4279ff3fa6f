"""Translates whole splits, with BLEU, and prompts."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from longmem_jax import files
from longmem_jax.data.documents import require_split
from longmem_jax.data.parallel import lines_of
from longmem_jax.data.warnings import of_pairs
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, visible
from longmem_jax.evaluation.evaluator import Evaluator
from longmem_jax.evaluation.tables import show
from longmem_jax.experiment import Experiment
from longmem_jax.generation.text import read_prompt, say_aside
from longmem_jax.generation.translator import Translator, bleu, require_libraries
from longmem_jax.reporting.progress import Progress


def translate_split(
    experiment: Experiment, params: Any, split: str, progress: Progress
) -> dict[str, Any]:
    """Translates a split, writes `WORKDIR/translations.SPLIT.txt`, and scores it by BLEU.

    Returns 'bleu', 'bleu_signature', 'sentences', 'beams', 'length_penalty'; also written to
    `WORKDIR/bleu.SPLIT.json`.
    """
    settings = experiment.config.translate
    corpus: Any = experiment.corpus(split)
    pairs = corpus.pairs
    count = min(len(pairs), settings.max_sentences or len(pairs))
    texts, references = zip(*(pairs[i] for i in range(count)), strict=True)
    progress.say(f'Translating {count:,} sentences of {split}, {settings.beams} beams ...')
    translations = _translated(
        experiment, params, texts, lambda said: progress.say(f'Note: {said}.')
    )
    score, signature = bleu(translations, list(references))
    result = {
        'bleu': score,
        'bleu_signature': signature,
        'sentences': count,
        'beams': settings.beams,
        'length_penalty': settings.length_penalty,
    }
    if jax.process_index() == 0:
        lines = ''.join(' '.join(text.splitlines()) + '\n' for text in translations)
        files.write(_output_path(experiment, split), lines)
        path = experiment.workdir / f'bleu.{split}.json'
        files.write_json(path, result)
    progress.say(f'{split}: BLEU {score:.2f} of {count:,} sentences ({signature})')
    for i in range(min(3, count)):
        progress.say(f'  {texts[i]}\n  > {translations[i]}\n  = {references[i]}')
    return result


def evaluate(experiment: Experiment, split: str = 'test') -> dict[str, Any]:
    """`--mode=evaluate`: loss and BLEU of a split with the newest checkpoint.

    Raises:
      UsageError: an unknown split, several processes, no checkpoint, or a library is missing.
    """
    require_split(split)
    sharding.require_one_process("--mode=evaluate of a 'seq2seq' model")
    require_libraries()
    progress = Progress(0, log_every=0)
    params, step = experiment.restore_parameters()
    progress.say(f'Evaluating step {step:,} of {experiment.workdir}.')
    corpus = experiment.corpus(split)
    for cut in of_pairs(corpus):
        progress.say(f'Note: {split}: {cut}.')
    evaluator = Evaluator(experiment.evaluation_model, experiment.mesh, experiment.config)
    result, _ = evaluator.evaluate(
        params,
        corpus,
        split,
        max_segments=experiment.config.evaluate.max_test_segments,
    )
    translation = translate_split(experiment, params, split, progress)
    progress.close()
    show(progress, {split: result}, {'translations': _output_path(experiment, split)})
    return {split: result, **translation}


def _translated(
    experiment: Experiment,
    params: Any,
    texts: Sequence[str],
    say: Callable[[str], Any],
    beams: int | None = None,
) -> list[str]:
    config = experiment.config.copy_and_resolve_references()
    if beams:
        config.translate.beams = beams
    translator = Translator(
        experiment.evaluation_model,
        experiment.tokenizer,
        config.translate,
        config.data.pairs.max_target,
    )
    return translator(params, texts, say)


def _output_path(experiment: Experiment, split: str) -> Path:
    return experiment.workdir / f'translations.{split}.txt'


def from_flags(
    experiment: Experiment, prompt: str = '', prompts: str = '', beams: int | None = None
) -> None:
    """`--mode=generate` with the options of the command line; `beams` overrides those of the config."""
    if prompts:
        raise UsageError('--prompts: a translator takes --prompt=@FILE, a text per line.')
    if beams == 0:
        raise UsageError('--beams=0: a translator searches with 1 or more.')
    translate_prompt(experiment, read_prompt(prompt).decode('utf-8', 'replace'), beams)


def translate_prompt(experiment: Experiment, text: str, beams: int | None = None) -> list[str]:
    """`--mode=generate`: translates every line of a text and prints the translations, line by line.

    Empty lines stay empty. `beams`: None = `config.translate.beams`.

    Raises:
      UsageError: no text, several processes, or no checkpoint.
    """
    lines = lines_of(text)
    said = [line for line in lines if line.strip()]
    if not said:
        raise UsageError(
            '--prompt: a text to translate is needed, or @FILE; this one has no words.'
        )
    sharding.require_one_process('--mode=generate')
    params, _ = experiment.restore_parameters()
    found = iter(_translated(experiment, params, said, say_aside, beams))
    # Line i of what is printed translates line i, as in files of pairs.
    translations = [' '.join(next(found).split('\n')) if line.strip() else '' for line in lines]
    text = '\n'.join(translations)
    print(visible(text) if sys.stdout.isatty() else text)
    return translations
