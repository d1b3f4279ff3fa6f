"""The modes of the command: those of the core, those that subjects bring, and which one is meant.

What a choice needs is imported when there is one: `--help` asks for the options alone.
"""

import sys
from collections.abc import Mapping
from typing import Any

from longmem_jax.errors import UsageError
from longmem_jax.registry import SUBJECTS
from longmem_jax.subject import DRAWN, TEXTS, Flag, Mode

FLAGS = {
    flag.name: flag
    for flag in (
        Flag('profile', False, 'Trace a few training steps to WORKDIR/profile.', bool),
        Flag('tracker', '', 'train: wandb, mlflow or both get the numbers of the run as well.'),
        Flag('prompt', '', 'generate, score, inspect: the text to continue, to score, or to show; '
             '@FILE reads a file.'),
        Flag('prompts', '', 'generate, score: JSON lines with a field "text", each read by itself.'),
        Flag('output', '', 'score, generate with --prompts: the file to write; .jsonl = JSON lines, '
             '.csv = commas (score); inspect: the page.'),
        Flag('length', None, 'generate: tokens to generate.', int, 0),
        Flag('temperature', None, 'generate: 0 = always the most likely token; play: 0, or 1 to draw '
             'actions.', float, 0.0),
        Flag('top_k', None, 'generate: sample from the k most likely tokens; 0 = all.', int, 0),
        Flag('top_p', None, 'generate: sample from the nucleus of this probability.', float, 0.0, 1.0),
        Flag('beams', None, 'generate: search the most likely text with N beams.', int, 0),
        Flag('seed', None, 'generate, play: random seed.', int, 0, 2**32 - 1),
        Flag('save_state', '', 'generate, evaluate: save the memory to this file.'),
        Flag('load_state', '', 'generate, score, inspect, evaluate: start from the memory in this '
             'file.'),
        Flag('split', '', 'train, validation or test; the default is test for evaluate and floors, '
             'train for build_datastore, all three for tokenize.'),
    )
}  # fmt: skip
HERE = 'longmem_jax.commands'
# 'compile' and 'list' are not here: they need neither data nor a workdir.
OWN = (
    Mode('train', f'{HERE}.train:train', ('profile', 'tracker'), reads=('texts', 'pairs', 'classes'),
         trained=False, writes=True),
    Mode('evaluate', f'{HERE}.evaluate:evaluate', ('split', 'save_state', 'load_state'),
         documents=True),
    Mode('evaluate', f'{HERE}.evaluate:evaluate', ('split',), reads=('classes',), writes=True,
         documents=True),
    Mode('evaluate', f'{HERE}.translate:evaluate', ('split',), reads=('pairs',), writes=True,
         documents=True),
    Mode('generate', f'{HERE}.generate:from_flags', (*TEXTS, *DRAWN)),
    Mode('generate', f'{HERE}.translate:from_flags', ('prompt', 'prompts', 'beams'),
         reads=('pairs',)),
    Mode('score', f'{HERE}.score:from_flags', TEXTS),
    Mode('floors', f'{HERE}.floors:measure', ('split',), trained=False, writes=True, documents=True),
    Mode('tokenize', f'{HERE}.tokenize_documents:tokenize', ('split',), trained=False,
         documents=True),
)  # fmt: skip


def modes() -> tuple[Mode, ...]:
    """All modes, those of the core first."""
    return (*OWN, *(mode for subject in SUBJECTS.values() for mode in subject.modes))


def flags_of(mode: Mode) -> dict[str, Flag]:
    """The options of a mode by name."""
    found = [FLAGS[flag] if isinstance(flag, str) else flag for flag in mode.flags]
    return {flag.name: flag for flag in found}


def all_flags() -> dict[str, Flag]:
    """The options of all modes by name; of two with one name ours counts, else the first."""
    found = dict(FLAGS)
    for mode in modes():
        found = found | flags_of(mode) | found
    return found


def is_meant(mode: Mode, config: Any, given: Mapping[str, Any]) -> bool:
    """Whether a mode is for a config and the options of a command line."""
    from longmem_jax.config import sections
    from longmem_jax.models.kinds import KINDS

    if mode.section and not mode.option:
        return sections.in_use(config, mode.section)
    fits = KINDS[config.model.kind].reads in mode.reads
    return fits and (not mode.option or mode.option in given)


def writes(mode: Mode, config: Any, given: Mapping[str, Any]) -> bool:
    """Whether a mode puts files into the workdir; the others read a run that may be read-only, and
    write where an option says.

    An evaluation does if its task has a series, or its source scores of its own. Neither is scored from
    the memory of one text, which the option `load_state` names.
    """
    if mode.writes or mode.name != 'evaluate' or given.get('load_state'):
        return mode.writes
    from longmem_jax.data.sources import SOURCES
    from longmem_jax.data.tasks.registry import TASKS

    source = config.data.source
    if source in TASKS:
        return TASKS[source].series is not None
    found = SOURCES.get(source)
    if found is None or not found.scores:
        return False
    return found.scored is None or found.scored(config.data.task)


def choose(name: str, config: Any, given: Mapping[str, Any]) -> Mode:
    """The mode of a name for a config; gives the config the section that the mode needs.

    `given` has the options of the command line.

    Raises:
      UsageError: it is for other models, or takes other options.
    """
    from longmem_jax.config import sections
    from longmem_jax.models.kinds import KINDS

    kind = config.model.kind
    named = [mode for mode in modes() if mode.name == name]
    # The most special one first; `sorted` keeps the order of equal ones.
    found = sorted(
        (mode for mode in named if is_meant(mode, config, given)),
        key=lambda mode: (not mode.option, not mode.section),
    )
    if not found:
        reads = {each for mode in named if not mode.section for each in mode.reads}
        fitting = [each for each, known in KINDS.items() if known.reads in reads]
        others = ', '.join(fitting) or ' or '.join(
            f'configs with config.{m.section}' for m in named
        )
        raise UsageError(f'--mode={name}: not for models of the kind {kind!r}; it is for {others}.')
    mode = found[0]
    if mode.adds:
        sections.add(config, mode.adds)
    taken = flags_of(mode)
    if unknown := [f'--{each}' for each in given if each not in taken]:
        allowed = ', '.join(f'--{each}' for each in taken) or 'none'
        of = f'with config.{mode.section}' if mode.section else f'of a model of the kind {kind!r}'
        raise UsageError(
            f'{", ".join(unknown)}: not for --mode={name} {of}, whose options are {allowed}.'
        )
    for section in _without(mode, config):
        others = ', '.join(f'--mode={each.name}' for each in modes() if each.section == section)
        said = f'--mode={name}: of the model alone; config.{section} is for {others}.'
        print(said, file=sys.stderr)  # beside what `score` and `generate` print to be read on
    for section in dict.fromkeys(other.section for other in named if not mode.section):
        if section in config and not sections.in_use(config, section):
            switch = sections.sections()[section].switch
            said = f"of the model alone, since config.{section}.{switch} = 'none'"
            print(f'--mode={name}: {said}.', file=sys.stderr)
    return mode


def _without(mode: Mode, config: Any) -> list[str]:
    """Sections in use that change what another mode makes of the model, and not what this one does."""
    from longmem_jax.config import sections

    of_others = dict.fromkeys(each.section for each in modes() if each.section)
    alone = mode.name in ('generate', 'score') and not mode.section
    return [section for section in of_others if alone and sections.in_use(config, section)]
