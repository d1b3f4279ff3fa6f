"""Scores of rules without a learned memory, for a table of experiments/compare.py."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments import markdown

PERCENT = {'exact_match': 'exact match, %', 'accuracy': 'accuracy, %'}
HEADINGS = PERCENT | {'bits_per_byte': 'bits/byte', 'perplexity': 'perplexity'}


def run(module: str, given: list[str]) -> None:
    """Runs `python -m MODULE` without its output; ends the program if that fails."""
    command = [sys.executable, '-m', module, *given]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f'failed: {" ".join(command)}')


def measure(config: str, variants: str, flags: list[str], folder: Path) -> dict[str, Any]:
    """The `floors.json` of a configuration; what is there is not measured again."""
    path = folder / 'floors.json'
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        given = [f'--config={config}:{variants}', f'--workdir={folder}', '--mode=floors', *flags]
        run('longmem_jax.main', given)
    return json.loads(path.read_text())


def table(measured: dict[str, Any]) -> str:
    """A Markdown table of what `measure` returned, with what was scored below it."""
    scores = measured['scores']
    shown = [name for name in HEADINGS if name in next(iter(scores.values()))]
    lines = []
    for label, found in scores.items():
        numbers = (found[name] * (100 if name in PERCENT else 1) for name in shown)
        lines.append([label, *(f'{number:.3f}' for number in numbers)])
    heads = ['without a learned memory', *(HEADINGS[name] for name in shown)]
    return f'{markdown.table(heads, lines)}\n\n{measured["protocol"]}'
