"""What a subject brings: config sections, modes, model kinds, sources of data, checks.

A subject is a folder of this library, or a package of somebody else. The core names none: each has a
`Subject` as an entry point of the group `longmem_jax.subjects`. The record is plain data and names
functions as 'module:function', so that a module is imported when it is used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Options of the core's modes with texts, and of those that draw some.
TEXTS = ('prompt', 'prompts', 'output', 'save_state', 'load_state')
DRAWN = ('length', 'temperature', 'top_k', 'top_p', 'beams', 'seed')


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option of a mode on the command line.

    Attributes:
      name: `--name=VALUE`.
      default: None = not given.
      help: one line.
      type: of the value.
      least, most: limits of a number; None = no limit.
    """

    name: str
    default: Any
    help: str
    type: type = str
    least: float | None = None
    most: float | None = None


@dataclasses.dataclass(frozen=True)
class Mode:
    """What `--mode=NAME` does with configs of some sort.

    Several modes may have one name. Of these the command takes the one whose `option` is given, then the
    one whose `section` is in use, then the one that `reads` what the kind of model reads.

    Attributes:
      name: of the mode.
      function: 'module:function', called with the experiment and the values of `flags` by name.
      flags: options of this mode; a text names one of the core (`commands.modes.FLAGS`).
      reads: `Kind.reads` of the models it is for.
      section: it is for configs in which this section is in use; '' = any.
      adds: section that it needs, made with neutral values if the config lacks it.
      option: it is for command lines with this flag; '' = any.
      trained: it reads a run, so a folder that is missing is a mistake.
      writes: it puts files into the workdir; the others may read a run that is read-only.
      documents: it reads the documents of `config.data`, and prints warnings about them.
    """

    name: str
    function: str
    flags: tuple[str | Flag, ...] = ()
    reads: tuple[str, ...] = ('texts',)
    section: str = ''
    adds: str = ''
    option: str = ''
    trained: bool = True
    writes: bool = False
    documents: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a config, `config.NAME`, which a config has if it uses it.

    Attributes:
      make: 'module:function', which sets `config.NAME` to neutral values, with a comment for each.
      switch: the field that is 'none' while the section is not in use.
      follows: (field, other section, its field) of fields that follow another one until they are set.
      open: sections inside it have the fields of what is used, and are checked there.
      lower: 'module:function': `(config, mesh) -> jax.stages.Lowered`, the training step of configs that
        use the section; '' = that of the core.
    """

    make: str
    switch: str
    follows: tuple[tuple[str, str, str], ...] = ()
    open: bool = False
    lower: str = ''


@dataclasses.dataclass(frozen=True)
class Subject:
    """Everything that a subject brings.

    Attributes:
      about: one line for `--mode=list`.
      sections: of configs, by name.
      modes: of the command.
      kinds: of models: name to 'module:object', a `models.kinds.Kind`.
      sources: values of `config.data.source` to 'module:object', a `data.sources.DataSource`.
      checks: 'module:function': `config -> problems`, each with the path of its field.
      starts: 'module:object', a `commands.start_from.Start`: first parameters from elsewhere.
      commands: modules with a command, for `--mode=list`: `python -m MODULE`.
    """

    about: str
    sections: Mapping[str, Section] = dataclasses.field(default_factory=dict)
    modes: tuple[Mode, ...] = ()
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    checks: tuple[str, ...] = ()
    starts: str = ''
    commands: tuple[str, ...] = ()
