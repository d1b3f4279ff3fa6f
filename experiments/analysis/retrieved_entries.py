r"""Tokens that gain from a memory of entries, and the entries that were retrieved for them.

python -m experiments.analysis.retrieved_entries --config=configs/memorizing_pg19.py[:variant] \
    --workdir=DIR --text=@FILE --output=FOLDER [--smaller=0] [--tokens=50]

Reads the text twice with the newest checkpoint: as evaluation does, and with only the newest `--smaller`
entries (0 = the entries are reset before every segment; caches of recent tokens stay). Writes
`retrieved.txt` and `retrieved.html`: the tokens whose log-probability rises most, each with the entries
of the largest weights, averaged over heads and memory layers, before the gates. An entry is that of an
earlier token, shown with its context, and the token that followed it in brackets.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from experiments.analysis.memory_parts import reset_part
from experiments.analysis.reading import full_segments, one_lane
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.generation.reader import fresh_state
from longmem_jax.generation.text import read_prompt
from longmem_jax.memory.registry import LAYERS
from longmem_jax.models.inspect import looks
from longmem_jax.models.kinds import make_model
from longmem_jax.reporting.gained import Gained, Read, shown_text, write

if __name__ == '__main__':
    _TEXT = flags.DEFINE_string('text', '', 'Text, or @FILE.')
    _OUTPUT = flags.DEFINE_string('output', 'retrieved', 'Folder for the report.')
    _SMALLER = flags.DEFINE_integer('smaller', 0, 'Entries to compare with.', lower_bound=0)
    _TOKENS = flags.DEFINE_integer('tokens', 50, 'Tokens in the report.', lower_bound=1)

ENTRIES = 'attention/rows/'  # where states keep a memory of entries
SHOWN = 8  # reads per token
CONTEXT = 16  # tokens of context shown


class Retrieved(NamedTuple):
    """What was retrieved while a text was read.

    Attributes:
      logs: float64 [tokens], log-probabilities of the targets.
      earlier: int64 [tokens, n], numbers of the tokens whose entries were read; -1 = none.
      weights: float64 [tokens, n], averaged over heads and layers.
    """

    logs: np.ndarray
    earlier: np.ndarray
    weights: np.ndarray


def memory_fields(config: Any) -> dict[str, str]:
    """Layer types of a model with a memory of entries, with the field for their number.

    Raises:
      UsageError: there are none.
    """
    found = {
        name: LAYERS[name].layer.nearest for name in config.attention if LAYERS[name].layer.nearest
    }
    if not found:
        names = sorted(name for name, entry in LAYERS.items() if entry.layer.nearest)
        raise UsageError(
            f'config.model.attention = {tuple(config.attention)}: no layer has a memory of entries; '
            f'allowed are {", ".join(names)}.'
        )
    return found


def with_entries(model: Any, number: int) -> Any:
    """The same model with `number` entries per memory.

    Raises:
      UsageError: more entries than the model has, or a number that the layer refuses.
    """
    config = ConfigDict(model.config)
    for name, field in memory_fields(config).items():
        section = config[name]
        if number >= section[field]:
            raise UsageError(
                f'--smaller={number}: must be less than {field} = {section[field]} of '
                f'config.model.{name}.'
            )
        section[field] = number
        block = min(section.block_size, number)
        section.block_size = block if number % block == 0 else number
        problems = LAYERS[name].layer.check(section, config, model.segment_length)
        if problems:
            raise UsageError(f'--smaller={number}: config.model.{name}: {"; ".join(problems)}.')
    return make_model(config, model.segment_length)


def written_token(entries: np.ndarray, num_written: int, size: int) -> np.ndarray:
    """The number of the token whose key and value are in an entry.

    Args:
      entries: int [...], positions in a ring of `size` entries; below 0 = none.
      num_written: tokens written since the beginning of the document.
      size: number of entries.

    Returns:
      int64 [...]; -1 where nothing is written.
    """
    newest = num_written - 1
    tokens = newest - (newest - np.asarray(entries, np.int64)) % size
    return np.where((entries < 0) | (tokens < 0), -1, tokens)


def read_text(
    model: Any, params: Any, inputs: np.ndarray, targets: np.ndarray, *, reset: bool = False
) -> Retrieved:
    """Reads a text from its beginning and collects what is retrieved.

    Args:
      model, params: with a memory of entries.
      inputs, targets: int32 [segments, length].
      reset: reset the entries before every segment.

    Raises:
      UsageError: a model without a memory of entries.
    """
    sizes = {name: model.config[name][field] for name, field in memory_fields(model.config).items()}
    initial = fresh_state(model, params, 1)

    @jax.jit
    def read(params: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        if reset:
            state = reset_part(state, initial, ENTRIES)
        state, logits, found = looks(model, params, one_lane(tokens), state)
        logs = jax.nn.log_softmax(logits[0].astype(jnp.float32))
        logs = jnp.take_along_axis(logs, targets[:, None], axis=1)[:, 0]
        found = {path: look for path, look in found.items() if look.entries is not None}
        return (
            state,
            logs,
            {path: (look.entries[0], look.weights[0]) for path, look in found.items()},
        )

    state, all_logs, all_earlier, all_weights = initial, [], [], []
    for number, (tokens, following) in enumerate(zip(inputs, targets, strict=True)):
        state, logs, found = read(params, state, tokens, following)
        earlier, weights = [], []
        for path, (entries, weight) in found.items():
            block = int(path.split('/')[0].removeprefix('block_'))
            size = sizes[model.config.attention[block]]
            by_head = written_token(np.asarray(entries), number * inputs.shape[1], size)
            earlier += list(by_head)
            weights += list(np.asarray(weight, np.float64))
        all_logs.append(np.asarray(logs, np.float64))
        all_earlier.append(np.concatenate(earlier, axis=-1))
        all_weights.append(np.concatenate(weights, axis=-1) / len(weights))
    return Retrieved(*(np.concatenate(parts) for parts in (all_logs, all_earlier, all_weights)))


def reads_of(earlier: np.ndarray, weights: np.ndarray) -> list[tuple[int, float]]:
    """At most `SHOWN` tokens whose entries were read, with their weights summed, the largest first.

    Args:
      earlier: int [n], numbers of tokens; below 0 = none.
      weights: float [n].
    """
    tokens, index = np.unique(earlier, return_inverse=True)
    total = np.bincount(index, weights=weights)
    order = [i for i in np.argsort(-total, kind='stable') if tokens[i] >= 0 and total[i] > 0]
    return [(int(tokens[i]), float(total[i])) for i in order[:SHOWN]]


def gained(
    full: Retrieved, smaller: Retrieved, inputs: np.ndarray, targets: np.ndarray, tokenizer: Any,
    count: int,
) -> list[Gained]:  # fmt: skip
    """The tokens with the largest gain, with what was read for them.

    Args:
      full, smaller: the text read with all entries, and with fewer.
      inputs, targets: int32 [segments, length], of the text.
      tokenizer: of the text.
      count: number of tokens; those that lose are left out.
    """
    inputs, targets = inputs.ravel(), targets.ravel()
    gain, tokens = full.logs - smaller.logs, []
    for number in np.argsort(-gain, kind='stable')[:count]:
        if gain[number] <= 0:
            break
        reads = []
        for earlier, weight in reads_of(full.earlier[number], full.weights[number]):
            context = inputs[max(earlier + 1 - CONTEXT, 0) : earlier + 1]
            reads.append(
                Read(
                    weight,
                    f'{number - earlier:,} tokens before',
                    shown_text(tokenizer, context),
                    shown_text(tokenizer, targets[earlier : earlier + 1]),
                    bool(targets[earlier] == targets[number]),
                )
            )
        before = shown_text(tokenizer, inputs[max(number + 1 - CONTEXT, 0) : number + 1])
        token = shown_text(tokenizer, targets[number : number + 1])
        logs = float(smaller.logs[number]), float(full.logs[number])
        tokens.append(Gained(before, token, *logs, reads))
    return tokens


def _main(experiment: Experiment) -> None:
    model, number = experiment.evaluation_model, _SMALLER.value
    memory_fields(model.config)
    other = with_entries(model, number) if number else model
    tokenizer = experiment.tokenizer
    inputs, targets = full_segments(
        tokenizer, read_prompt(_TEXT.value, '--text'), model.segment_length
    )
    params, _ = experiment.restore_parameters()
    full = read_text(model, params, inputs, targets)
    smaller = read_text(other, params, inputs, targets, reset=not number)
    print(
        f'{targets.size:,} tokens: {-full.logs.mean():.4f} nats with all entries, '
        f'{-smaller.logs.mean():.4f} with {number or "none"}; '
        f'{(full.logs > smaller.logs).mean():.1%} of the tokens gain'
    )
    found = gained(full, smaller, inputs, targets, tokenizer, _TOKENS.value)
    folder = Path(_OUTPUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    for path in write(found, folder, 'retrieved', 'Retrieved entries'):
        print(path)


if __name__ == '__main__':
    entry.command(_main)
