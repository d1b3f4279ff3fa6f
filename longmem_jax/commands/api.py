"""The command from Python: `longmem_jax.train`, `evaluate`, `generate`, `score` and `run_mode`.

Each takes the folder of a run, as `--workdir=` does, and returns what the command prints or writes.
`longmem_jax.load` gives the model itself, for one's own loop.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections

from longmem_jax import stopping
from longmem_jax.commands import modes
from longmem_jax.commands.generate import generate as generate_text
from longmem_jax.commands.generate_all import continuations
from longmem_jax.commands.score import score as score_text
from longmem_jax.commands.writer import Writer
from longmem_jax.config import checks
from longmem_jax.config.files import configure
from longmem_jax.config.saved import saved_config
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError, require_type, unknown
from longmem_jax.evaluation.token_losses import TokenLosses
from longmem_jax.experiment import Experiment, Hook
from longmem_jax.files import nowhere
from longmem_jax.generation.text import require_one_text, require_one_way
from longmem_jax.registry import load, require_installed
from longmem_jax.training.optimizer import GIVEN
from longmem_jax.workdir import prepare_workdir, workdir_of

Folder = str | bytes | os.PathLike[str]


def train(
    config: str | Path | ml_collections.ConfigDict,
    workdir: Folder,
    *,
    changes: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook] = (),
    optimizer: Any = None,
    profile: bool = False,
) -> Any:
    """Trains, or continues from the newest checkpoint of the folder, as `--mode=train` does.

    Args:
      config: what `--config=` takes, such as 'quickstart:memory=infini'; or a configuration.
      workdir: folder of the run.
      changes: fields that differ, such as {'train.num_steps': 200}.
      hooks: each is called as `hook(step, group, values)`, with the group 'step' after every step,
        'train' and 'speed' every `config.train.log_every` steps, 'validation' after an evaluation,
        'test' and 'test_reset' at the end, 'compile' before the first step, and 'checkpoint' (without
        numbers) when that of a step is whole on the disk, up to a few steps later. Of several processes
        the first calls them. A hook that raises `longmem_jax.Stop` ends the training: the run is saved,
        and the same call continues it. Another error ends the run at once; it then continues from its
        newest checkpoint. A method `close` of a hook is called when the run ends.
      optimizer: an `optax.GradientTransformation` in place of that of `config.optimizer`, with its own
        rate and weight decay. Clipping, rates of groups and accumulation of `config.optimizer` stay
        around it (`clip_norm` is 0.25 unless set; 0 = none). It is to be given again when the run goes
        on; no other function needs it.
      profile: write a trace of a few steps to WORKDIR/profile.

    Returns:
      How it ended: `commands.train.Summary`, with `results['test'].bits_per_byte`; of a learner or an
      agent what its own training returns.

    Raises:
      UsageError: as the command's messages say.
      KeyboardInterrupt: Ctrl-C was pressed; the run is saved, and the same call continues it. After
        SIGTERM the program ends in the same way.
    """
    hooks = _hooks(hooks)
    made = configure(config, changes)
    if optimizer is not None:
        made = configure(made, {'optimizer.name': GIVEN})
    given_flags = dict(profile=True) if profile else {}
    with workdir_of(_path('workdir', workdir)) as folder:
        experiment = _experiment(made, folder, writes=True, hooks=hooks, given=optimizer)
        mode = modes.choose('train', experiment.config, given_flags)
        ended = load(mode.function)(experiment, **given_flags)
    stopping.obey()
    return ended


def evaluate(
    workdir: Folder, split: str = 'test', *, changes: Mapping[str, Any] | None = None
) -> Any:
    """Scores a split with the newest parameters of a run, as `--mode=evaluate` does.

    Args:
      workdir: folder of the run.
      split: 'train', 'validation' or 'test'.
      changes: fields that differ from those of the run, such as {'evaluate.num_lanes': 1}.

    Returns:
      {'test': `evaluation.result.Result`, 'test, memory reset': ...} of a language model; of other
      kinds what their own evaluation returns.

    Raises:
      UsageError: as the command's messages say.
    """
    experiment = _of_run(workdir, changes)
    mode = modes.choose('evaluate', experiment.config, {})
    if modes.writes(mode, experiment.config, {}):  # noticed before anything is scored
        prepare_workdir(str(experiment.workdir), trained=True)
    return load(mode.function)(experiment, split=split)


def generate(
    workdir: Folder,
    prompt: str | bytes | Sequence[str] = '',
    *,
    save_state: Folder = '',
    load_state: Folder = '',
    changes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The text with which a run continues a prompt, as `--mode=generate` does.

    Args:
      workdir: folder of the run.
      prompt: the text, of any length; all of it is read. Or several, each read by itself.
      save_state, load_state: files of memories: where it is saved at the end, and what to start from.
      changes: fields that differ from those of the run.
      options: fields of `config.generate`: length, temperature, top_k, top_p, seed, beams.

    Returns:
      The text, without the prompt; a list of them for several prompts.

    Raises:
      UsageError: as the command's messages say.
    """
    require_one_way(options)
    # As fields of the configuration they are checked like those.
    fields = {f'generate.{name}': each for name, each in options.items()}
    experiment, load_state = _of_run(workdir, changes, fields), _path('load_state', load_state)
    _require_texts('generate', experiment)
    save_state = _path('save_state', save_state)
    if not isinstance(prompt, str | bytes):
        require_type('prompt', prompt, Iterable, 'a text, or a list of texts')
        require_one_text('', 'several prompts', save_state)
        texts = [_bytes(each) for each in prompt]  # before any is continued
        writer = Writer(experiment, {}, load_state=load_state)
        return list(continuations(experiment, writer, texts))
    with nowhere() as out:
        return generate_text(
            experiment, _bytes(prompt), {}, save_state=save_state, load_state=load_state, out=out
        )


def score(
    workdir: Folder,
    text: str | bytes,
    *,
    load_state: Folder = '',
    changes: Mapping[str, Any] | None = None,
) -> TokenLosses:
    """The loss of every token of a text, as `--mode=score` has it.

    Args:
      workdir: folder of the run.
      text: what is scored.
      load_state: file of a memory that the text continues.
      changes: fields that differ from those of the run.

    Raises:
      UsageError: as the command's messages say.
    """
    experiment = _of_run(workdir, changes)
    _require_texts('score', experiment)
    with nowhere() as out:
        return score_text(
            experiment,
            _bytes(text),
            load_state=_path('load_state', load_state),
            out=out,
        )


def run_mode(
    mode: str, workdir: Folder, *, changes: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """What `--mode=` of a name does with a run that is there, such as 'floors' or 'inspect'.

    Args:
      mode: its name.
      workdir: folder of the run.
      changes: fields that differ from those of the run.
      options: those of the mode, without dashes: `output='page.html'`.

    Returns:
      What the function of the mode returns; most of them print or write files.

    Raises:
      UsageError: as the command's messages say.
    """
    if mode == 'train':
        raise UsageError("mode = 'train': longmem_jax.train(config, workdir) trains.")
    names = sorted({each.name for each in modes.modes()} - {'train'})
    if mode not in names:
        raise UsageError(unknown('mode', mode, names))
    config = configure(saved_config(Path(_path('workdir', workdir))), changes)
    paths = {name: value for name, value in options.items() if isinstance(value, os.PathLike)}
    given = options | {name: os.fspath(path) for name, path in paths.items()}
    chosen = modes.choose(mode, config, given)
    for name, value in given.items():
        kind = modes.all_flags()[name].type
        types: Any = int | float if kind is float else kind
        if isinstance(value, bool) and kind is not bool:
            types = ()  # to Python it is a number
        require_type(name, value, types, f'one of {kind.__name__}')
    experiment = _experiment(config, workdir, writes=modes.writes(chosen, config, given))
    return load(chosen.function)(experiment, **given)


def _hooks(given: Any) -> tuple[Hook, ...]:
    """Raises unless all can be called as hooks are."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f'hooks = {given!r}: give a list of functions, such as [print].')
    for hook in (hooks := tuple(given)):
        require_type('a hook', hook, Callable, 'a function of step, group and values')
        try:
            inspect.signature(hook).bind(0, 'train', {})
        except TypeError as error:
            raise UsageError(
                f'a hook = {hook!r}: cannot be called as hook(step, group, values): {error}.'
            ) from None
        except ValueError:  # of a function that is not written in Python
            pass
    return hooks


def _path(name: str, given: Folder) -> str:
    require_type(name, given, str | bytes | os.PathLike, 'a path, as text or a pathlib.Path')
    return os.fsdecode(given)


def _bytes(text: str | bytes) -> bytes:
    require_type('the text', text, str | bytes, 'text')
    try:
        return text if isinstance(text, bytes) else text.encode('utf-8', 'surrogateescape')
    except UnicodeEncodeError as error:
        raise UsageError(
            f'the text has half a character, {text[error.start]!r}, at {error.start:,}: give whole '
            'ones, or bytes.'
        ) from error


def _require_texts(name: str, experiment: Experiment) -> None:
    """Raises unless the model continues texts: another one would give numbers that mean nothing."""
    mode = modes.choose(name, experiment.config, {})
    if 'texts' not in mode.reads:
        raise UsageError(
            f'longmem_jax.{name}: not for models of the kind {experiment.config.model.kind!r}; use '
            f'longmem_jax.run_mode({name!r}, workdir, ...).'
        )


def _of_run(
    workdir: Folder, changes: Mapping[str, Any] | None, fields: Mapping[str, Any] | None = None
) -> Experiment:
    """A run that is there, to read; with changes, and then with further fields."""
    saved = saved_config(Path(_path('workdir', workdir)))
    return _experiment(configure(configure(saved, changes), fields), workdir, writes=False)


def _experiment(
    config: ml_collections.ConfigDict,
    workdir: Folder,
    *,
    writes: bool,
    hooks: tuple[Hook, ...] = (),
    given: Any = None,
) -> Experiment:
    """What a mode is called with."""
    require_installed()
    checks.require_runnable(config, jax.device_count())
    folder = prepare_workdir(_path('workdir', workdir), trained=not writes, writes=writes)
    mesh = sharding.make_mesh(config.mesh.to_dict())
    return Experiment(config, folder, mesh, hooks, given)
