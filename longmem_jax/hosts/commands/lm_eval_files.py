"""Writes the test split of a benchmark as a task of lm-eval, for any model that lm-eval can run.

python -m longmem_jax.hosts.commands.lm_eval_files --config=ruler:task=vt,length=4096 --folder=DIR
lm_eval --model hf --model_args pretrained=MODEL --include_path DIR --tasks ruler_vt_4096

A task for each of `config.data.task.lengths`: a YAML file, its samples as JSON lines, and the score.
Lengths are counted with the tokenizer of the config; `--config.data.tokenizer.kind=tokenizers` and
`--config.data.tokenizer.path=FOLDER` name that of the model (otherwise a vocabulary is learned, as in
training, and kept in the folder). A model writes freely after the prompt.
Runs of this library are scored by `longmem_jax.hosts.commands.lm_eval` with `--include_path=`.
"""

import json
from pathlib import Path
from typing import Any

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.data.load import make_tokenizer
from longmem_jax.data.sources import SOURCES
from longmem_jax.errors import UsageError
from longmem_jax.files import write
from longmem_jax.problems import require_none, under

if __name__ == '__main__':
    _FOLDER = flags.DEFINE_string('folder', '', 'Folder to write.')

YAML = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {samples}
test_split: test
output_type: generate_until
doc_to_text: "{{{{input}}}}{{{{answer_prefix}}}}"
doc_to_target: "{{{{outputs}}}}"
process_results: !function {name}.process_results
generation_kwargs:
  until: []
  do_sample: false
  max_gen_toks: {generated}
metric_list:
  - metric: {score}
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
SCORE = '''\
"""The score of {name}."""

from {module} import {score}


def process_results(doc, results):
    """The score of one answer."""
    return {{'{score}': {score}(results[0], doc['outputs'])}}
'''


def write_tasks(config: Any, folder: str) -> list[Path]:
    """Writes a task for each length; returns the YAML files.

    Raises:
      UsageError: no folder, or the source has no prompts, or as it does for its samples.
    """
    data = config.data
    source = SOURCES[data.source] if data.source in SOURCES else None
    if source is None or source.prompts is None:
        having = ', '.join(name for name, each in SOURCES.items() if each.prompts)
        raise UsageError(
            f'config.data.source = {data.source}: has no prompts to answer; {having} has.'
        )
    if not folder:
        raise UsageError("--folder='': give the folder to write.")
    if source.check:
        require_none(under('config.data.task', source.check(data.task)))
    place = Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f'--folder={folder}: cannot be made: {error.strerror}.') from error
    written = []
    for found in source.prompts(data, make_tokenizer(data, place)):
        module, score = found.score.split(':')
        samples = (place / f'{found.name}.jsonl').resolve()
        fields: dict[str, Any] = dict(
            name=found.name, samples=json.dumps(str(samples)), generated=found.generated,
            module=module, score=score,
        )  # fmt: skip
        lines = (json.dumps(sample, ensure_ascii=False) + '\n' for sample in found.samples)
        write(samples, ''.join(lines))
        write(place / f'{found.name}.py', SCORE.format(**fields))
        write(place / f'{found.name}.yaml', YAML.format(**fields))
        written.append(place / f'{found.name}.yaml')
        print(written[-1])
    return written


if __name__ == '__main__':
    entry.command(lambda config: write_tasks(config, _FOLDER.value), workdir=False)
