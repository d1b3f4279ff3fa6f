"""README.md of an exported model: what its memory is, its scores, and what the hub reads of them."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from longmem_jax.hosts.graft_file import AND
from longmem_jax.memory.registry import used
from longmem_jax.training.metrics import METRICS

LARGEST = 1e15  # scores that are larger, or no numbers, are left out


def model_card(
    name: str,
    model: Any,
    *,
    base_model: str = '',
    metadata: Mapping[str, Any] | None = None,
    own: Collection[str] = (),
    step: int = 0,
    segment_length: int = 512,
    results: Mapping[str, Any] | None = None,
    dataset: Mapping[str, str] | None = None,
    graft: str = '',
) -> str:
    """README.md of an exported model, with the front matter that the Hugging Face hub reads.

    Args:
      name: of the model.
      base_model: the host that it began with, '' = none.
      metadata: further fields of the front matter, such as `license`.
      own: layers of the host itself.
      step: of the checkpoint.
      segment_length: tokens per segment that it was trained with, for the lines that load it.
      results: the content of a run's `results.json`; evaluations become a table and `model-index`.
      graft: its name on the hub, of a card of what was added to the host alone.
      dataset: `type`, `name` and `split` of what they scored, for `model-index`.
    """
    stacks = (model.attention, model.feed_forward, model.beside, model.around)
    memories = sorted({*used(model)} - {'full', 'sliding', 'local', 'dense', 'experts', *own})
    fields = {
        'library_name': 'longmem_jax',
        'pipeline_tag': 'text-generation',
        'tags': ['longmem_jax', 'long-context'],
        **(metadata or {}),
    }
    scores = _scores(results or {})
    # Values are JSON, which YAML includes.
    lines = ['---', *(f'{key}: {_json(value)}' for key, value in fields.items())]
    if scores and dataset:
        lines += ['model-index:', f'- name: {_json(name)}', '  results:']
        lines += [f'  - {_json(entry)}' for entry in _index(scores, results or {}, dataset)]
    lines += ['---', f'# {name}', '']
    began = f' It began with the parameters of `{base_model}`.' if base_model else ''
    lines += [f'Trained for {step:,} steps with longmem_jax.{began}', '', '## Memory', '']
    if not memories:
        lines.append('None, only the keys and values of its own context.')
    for memory in memories:
        layers = [str(i) for stack in stacks for i, other in enumerate(stack) if other == memory]
        values = ', '.join(f'{key} = {value}' for key, value in model[memory].items())
        lines.append(f'- `{memory}` in layers {", ".join(layers)}: {values}')
    if graft:
        lines += ['', 'This is what was added to the host, which is not part of it:', '', '```']
        lines += [f'longmem --config=host:path={base_model},graft={graft} --workdir=DIR '
                  "--mode=generate --prompt='...'", '```']  # fmt: skip
    elif memories:
        lines += [
            '',
            'Only longmem_jax reads the memory. Programs that do not know it find a model without it, '
            'which is not what was trained.',
        ]
    host = f'{base_model}{AND}{graft}' if graft else 'FOLDER'
    lines += ['', '```python', 'from longmem_jax.hosts import hosts', '']
    lines += [f"host = hosts.find('{host}')"]
    lines += [f'model = hosts.make(host.model, segment_length={segment_length})']
    lines += ['params = hosts.load(host, model)', '```']
    if results:
        lines += ['', '## Results', '']
    if scores:
        columns = [key for key in METRICS if any(key in score for score in scores.values())]
        lines += [_row('evaluation', *(METRICS[key].label for key in columns))]
        lines += [_row(*['---'] * (1 + len(columns)))]
        for label, score in scores.items():
            cells = [
                METRICS[key].form.format(score[key]) if key in score else '' for key in columns
            ]
            lines.append(_row(label, *cells))
        lines.append('')
    for key, value in (results or {}).items():
        text = value.get('protocol', '') if key in scores else _text(value)
        lines.append(f'- {key}: {text}')
    return '\n'.join(lines) + '\n'


def _scores(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The finite metrics of every evaluation of a `results.json`."""
    found = {
        label: {
            key: float(entry[key])
            for key in METRICS
            if isinstance(entry.get(key), int | float) and abs(entry[key]) < LARGEST
        }
        for label, entry in results.items()
        if isinstance(entry, dict)
    }
    return {label: score for label, score in found.items() if score}


def _index(
    scores: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Any],
    dataset: Mapping[str, str],
) -> list[dict[str, Any]]:
    """`results` of the hub's `model-index`, one per evaluation, with its protocol as arguments."""
    task = {'type': 'text-generation', 'name': 'Language modeling'}
    return [
        {
            'task': task,
            'dataset': {**dataset, 'args': {'protocol': str(results[label].get('protocol', ''))}},
            # Rounded, so that no number has an exponent, which YAML 1.1 would read as text.
            'metrics': [
                {'type': key, 'name': f'{METRICS[key].label} ({label})', 'value': round(value, 4)}
                for key, value in score.items()
            ],
        }
        for label, score in scores.items()
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _row(*cells: str) -> str:
    """A row of a table."""
    return f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'


def _text(value: Any) -> str:
    """A JSON value in one line."""
    if isinstance(value, dict):
        return ', '.join(f'{key} {_text(item)}' for key, item in value.items())
    text = f'{value:.6g}' if isinstance(value, float) else str(value)
    return text.replace('\n', ' ')
